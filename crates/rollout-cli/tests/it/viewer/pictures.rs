//! The five main pages at the width of a desktop and of a phone: nothing is wider than the window.
//!
//! With `UPDATE_PICTURES=1`, the pictures in docs/ are written again.

use std::{fs, path::Path};

use rollout_testkit::{Browser, ModelReply, ModelServer, TestJob, TestTask};
use serde_json::json;

use super::RunningViewer;

const TASKS: [&str; 16] = [
    "batch-insert",
    "cache-layer",
    "clean-html",
    "csv-to-parquet",
    "date-range",
    "diff-json",
    "find-leak",
    "fix-auth-timeout",
    "graph-paths",
    "lint-rules",
    "merge-config",
    "parse-csv-header",
    "port-to-asyncio",
    "rate-limit",
    "sql-report",
    "unicode-slugs",
];

/// Tests with colours, whose reward is in a file of the agent.
const TESTS: &str = r#"#!/bin/sh
printf '\033[1mrunning 4 tests\033[0m\ntest reads_all_rows ... \033[32mok\033[0m\n'
reward=$(cat /app/done 2>/dev/null || echo 0)
case $reward in
  1) printf 'test total ... \033[32mok\033[0m\n\n4 passed\n' ;;
  *) printf 'test total ... \033[31mFAILED\033[0m\n\n  left: 41\n right: 42\n\n3 passed, 1 failed\n' ;;
esac
echo $reward > /logs/verifier/reward.txt
"#;

/// An agent that solves about this many of a hundred tasks.
fn agent(name: &str, skill: u32) -> serde_json::Value {
    let execute = format!(
        "cat \"$ROLLOUT_TASK_INSTRUCTION\"\nluck=$((RANDOM % 100))\n\
         if [ $((RANDOM % 14)) = 0 ]; then echo \"npm error: no answer from port $RANDOM\" >&2; exit 3; fi\n\
         if [ $luck -lt {skill} ]; then echo 1; elif [ $luck -gt 90 ]; then echo 0.5; else echo 0; fi > /app/done\n\
         printf '{{\"input_tokens\": %d, \"output_tokens\": %d, \"cost_usd\": 0.0%d}}' $RANDOM $((RANDOM / 9)) $((10 + RANDOM % 80)) \
         > /logs/agent/usage.json"
    );
    json!({"name": name, "execute": execute})
}

#[test]
fn pages_fit_into_a_desktop_and_a_phone() {
    let patch = "diff --git a/total.py b/total.py\n--- a/total.py\n+++ b/total.py\n@@ -1,3 +1,3 @@\n def total(rows):\n-    return sum(rows[1:])\n+    return sum(rows)\n";
    let server = ModelServer::turns([
        ModelReply::text("I look at the files first.")
            .call("bash", &json!({"command": "ls /usr/share/common-licenses | head -4"})),
        ModelReply::text("The first row is skipped. I change that.").call(
            "bash",
            &json!({"command": format!("cat > /tmp/change.diff <<'EOF'\n{patch}EOF\ncat /tmp/change.diff")}),
        ),
        ModelReply::text("The total now includes the first row, so all tests should pass."),
    ]);
    let mut job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .set("n_attempts", json!(2))
        .set("n_concurrent_trials", json!(8));
    for name in TASKS {
        let instruction = format!("Make the tests of {} pass.\n", name.replace('-', " "));
        job = job.task(TestTask::new(name).tests(TESTS).file("instruction.md", &instruction));
    }
    let model =
        json!({"name": "model", "model": {"name": "scripted", "base_url": server.url(), "max_retries": 0}});
    for (name, small, large) in [("monday", 30, 50), ("tuesday", 40, 80)] {
        let agents = json!([agent("small", small), agent("large", large), model]);
        job = job.set("name", json!(name)).set("agents", agents);
        job.run();
    }
    let viewer = RunningViewer::start(&job);
    let browser = Browser::start();
    let pages = [
        ("jobs", "index.html", 420, 560),
        ("job", "jobs/tuesday/index.html", 1060, 2600),
        ("trials", "jobs/tuesday/trials.html?status=unsolved", 620, 900),
        ("trial", "jobs/tuesday/trials/model/set/sql-report__1/index.html", 1160, 2600),
        ("compare", "compare/monday/large/with/tuesday/large/index.html", 900, 1100),
    ];
    // With the largest heights: a page that is shorter has a shorter picture.
    for (name, path, desktop, phone) in pages {
        for (kind, width, height) in [("desktop", 1200, desktop), ("phone", 390, phone)] {
            browser.size(width, height, kind == "phone");
            browser.open(&viewer.page(path));
            browser.until("!document.body.dataset.events || !document.querySelector('#live').hidden");
            // The last change of the model, with its patch.
            browser
                .run("document.querySelectorAll('#step-4 details').forEach((fold) => { fold.open = true; })");
            let wider = browser.run("return document.documentElement.scrollWidth - innerWidth");
            assert!(wider.as_i64().is_some_and(|wider| wider <= 0), "{name} at {width}: {wider}");
            let scrolled = "return [...document.querySelectorAll('.scroll')].filter(part => part.scrollWidth > part.clientWidth + 1).length";
            assert_eq!(browser.run(scrolled), 0, "a table of {name} is wider than {width}");
            let whole = browser.run("return document.querySelector('main').getBoundingClientRect().bottom");
            let whole = whole.as_f64().unwrap().ceil() as u32;
            browser.size(width, height.min(whole), kind == "phone");
            let small = "return [...document.querySelectorAll('.chart text')].filter(text => \
                         parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a < 11).length";
            assert_eq!(browser.run(small), 0, "text of charts of {name} at {width}");
            let picture = browser.screenshot();
            if std::env::var_os("UPDATE_PICTURES").is_some() {
                let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/viewer");
                fs::create_dir_all(&docs).unwrap();
                fs::write(docs.join(format!("{name}-{kind}.png")), picture).unwrap();
            }
        }
    }
    assert_eq!(browser.problems(), [""; 0]);
}
