//! What a person does with the viewer.

use std::fs;

use rollout_testkit::{Browser, Gate, LargeJob, ModelReply, ModelServer, TestJob, TestTask};
use serde_json::json;

use super::{RunningViewer, file_url, job};

/// Checks that pages caused no error and requested nothing from elsewhere.
#[track_caller]
fn expect_quiet(browser: &Browser, base: &str) {
    assert_eq!(browser.problems(), [""; 0]);
    let requests = browser.requests();
    let foreign: Vec<&String> =
        requests.iter().filter(|url| !url.starts_with(base) && !url.starts_with("data:")).collect();
    assert!(!requests.is_empty() && foreign.is_empty(), "{foreign:?}");
}

#[test]
fn a_failed_trial_is_found_from_the_list_of_jobs() {
    let job = job();
    job.run().expect(1);
    let viewer = RunningViewer::start(&job);
    let browser = Browser::start();
    browser.open(&viewer.url);
    browser.until("document.querySelector('#live:not([hidden])')");
    assert!(browser.text().contains("33.3%"), "{}", browser.text());

    browser.click("[data-search]");
    browser.press("nothing like this");
    browser.until("!document.querySelector('#jobs tbody tr:not([hidden])')");
    browser.run("const search = document.querySelector('[data-search]'); search.value = 'good'; search.dispatchEvent(new Event('input')); search.blur()");
    browser.until("document.querySelector('#jobs tbody tr:not([hidden])')");
    // The search is part of the address.
    assert!(browser.url().contains("jobs.text=good"), "{}", browser.url());

    browser.click("#jobs a.open");
    browser.until("document.querySelector('#grid')");
    assert_eq!(browser.run("return document.querySelectorAll('#grid a.cell').length"), json!(6));
    assert_eq!(browser.run("return document.querySelectorAll('#grid .cell.failed').length"), json!(2));
    let text = browser.text();
    assert!(text.contains("2 trials") && text.contains("cannot find"), "{text}");
    browser.click("[data-chip=solved]");
    browser.until("document.querySelectorAll('#grid tbody tr:not([hidden])').length == 2");

    browser.click(".count.failed");
    browser.until("document.querySelector('#trials')");
    assert_eq!(browser.run("return document.querySelectorAll('#trials tbody tr').length"), json!(2));
    browser.click("#trials a.open");
    browser.until("document.querySelector('.error')");
    let text = browser.text();
    assert!(text.contains("agent_execution_failed") && text.contains("2 trials with this cause"), "{text}");
    assert_eq!(browser.run("return document.querySelector('.error .fg1').textContent"), "the tool");

    browser.run(
        "[...document.querySelectorAll('.files a')].find(a => a.textContent == 'command/stdout.txt').click()",
    );
    browser.until("document.querySelector('pre.log.whole')?.textContent == 'trying\\n'");
    expect_quiet(&browser, &viewer.page(""));
}

#[test]
fn a_grid_of_ten_thousand_cells_is_usable() {
    let large = LargeJob::containers(10_000);
    let dir = large.dir().parent().unwrap().display().to_string();
    let viewer = RunningViewer::start_with(&TestJob::new(env!("CARGO_BIN_EXE_rollout")), &["view", &dir]);
    let browser = Browser::start();
    browser.open(&viewer.page("jobs/job/index.html"));
    browser.until("document.querySelectorAll('#grid a.cell').length == 10000");
    assert_eq!(browser.run("return document.querySelectorAll('#grid .cell.solved').length"), json!(5000));
    let search = |text: &str| {
        let type_in = "const search = document.querySelector('[data-search]'); search.value = ";
        browser.run(&format!("{type_in}'{text}'; search.dispatchEvent(new Event('input')); search.blur()"));
    };
    // The heading stays while the rows move.
    browser
        .run("document.querySelector('#grid tbody tr:last-child a.cell').scrollIntoView({ block: 'end' })");
    let heading = "document.querySelector('#grid thead th:last-child').getBoundingClientRect()";
    browser.until(&format!("{heading}.top >= 0 && {heading}.bottom < innerHeight / 2"));
    let first = "document.querySelector('#grid tbody tr a.cell').getBoundingClientRect().bottom < 0";
    assert_eq!(browser.run(&format!("return {first}")), json!(true));

    search("task-00099");
    browser.until("document.querySelectorAll('#grid tbody tr:not([hidden])').length == 10");
    search("");
    browser.until("document.querySelectorAll('#grid tbody tr:not([hidden])').length == 1000");
    browser.run("document.querySelector('#grid a.cell').focus()");
    // Right, down, Enter.
    browser.press("\u{e014}\u{e015}\u{e007}");
    browser.until("document.title.startsWith('agent/set/task-000001__2')");
    expect_quiet(&browser, &viewer.page(""));
}

#[test]
fn pages_are_used_without_a_mouse() {
    let job = job();
    job.run().expect(1);
    let viewer = RunningViewer::start(&job);
    let browser = Browser::start();
    browser.open(&viewer.url);
    browser.press("j\u{e007}");
    browser.until("document.querySelector('#grid')");
    browser.run("document.querySelector('#grid a.cell').focus()");
    // Right, down, Enter.
    browser.press("\u{e014}\u{e015}\u{e007}");
    browser.until(
        "document.title.startsWith('idle/set/second__1') || document.title.startsWith('good/set/second__1')",
    );
    browser.press("f");
    browser
        .until("document.title.startsWith('idle/set/first__1') || document.title.startsWith('broken/set/')");
    browser.press("u");
    browser.until("document.querySelector('#grid')");
    browser.press("?");
    browser.until("document.querySelector('#keys').open");
    browser.press("\u{e00c}");
    browser.press("t");
    browser.until("['light', 'dark'].includes(document.documentElement.dataset.theme)");
    expect_quiet(&browser, &viewer.page(""));
}

#[test]
fn a_running_job_is_followed_to_its_end_without_reloading() {
    let gate = Gate::new();
    let script = format!("echo first line\n{}echo last line; touch /app/done", gate.wait());
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "agent", "execute": script}))
        .task(TestTask::new("task"));
    let running = job.start();
    let arrival = gate.arrival();
    let viewer = RunningViewer::start(&job);
    let (browser, other) = (Browser::start(), Browser::start());
    browser.open(&viewer.page("jobs/job/index.html"));
    other.open(&viewer.page("jobs/job/trials/agent/set/task__1/index.html"));
    for page in [&browser, &other] {
        page.run("window.isSamePage = true");
        page.until("document.querySelector('.badge.running')");
        page.until("document.querySelector('#live:not([hidden])')");
    }
    other.until("document.body.innerText.includes('first line')");
    assert!(!other.text().contains("last line"));
    arrival.pass();
    running.finish().expect(0);
    browser
        .until("document.querySelector('.badge.finished') && document.querySelector('#grid .cell.solved')");
    other.until("document.querySelector('.badge.solved') && document.body.innerText.includes('last line')");
    for page in [&browser, &other] {
        assert_eq!(page.run("return window.isSamePage"), json!(true));
        expect_quiet(page, &viewer.page(""));
    }
}

#[test]
fn two_jobs_are_compared_task_by_task() {
    let job = job();
    job.run().expect(1);
    let idle = json!({"name": "idle", "execute": "touch /app/done"});
    let job =
        job.set("name", json!("later")).set("agents", json!([{"name": "good", "execute": "true"}, idle]));
    job.run().expect(0);
    let viewer = RunningViewer::start(&job);
    let browser = Browser::start();
    browser.open(&viewer.page("compare/job/idle/with/later/idle/index.html"));
    let text = browser.text();
    assert!(text.contains("+100.0%") && text.contains("2 won, 0 lost"), "{text}");
    assert_eq!(browser.run("return document.querySelectorAll('#changed .badge.better').length"), json!(2));
    browser.open(&viewer.page("jobs/later/index.html"));
    browser.click(".around a");
    browser.until("document.title.startsWith('job and later')");
    // Each agent has a link of its own, on the page of the job and in the list.
    browser.open(&viewer.page("jobs/later/index.html"));
    let changes = "[...document.querySelectorAll('td[data-label=Changes] a')].map(a => a.textContent)";
    assert_eq!(browser.run(&format!("return {changes}")), json!(["since job", "since job"]));
    browser.open(&viewer.url);
    assert_eq!(browser.run(&format!("return {changes}")), json!(["good", "idle"]));

    // Any two can be chosen.
    let choose = |side: &str, value: &str| {
        browser.run(&format!("document.querySelector('[name={side}]').value = '{value}'"));
    };
    choose("left", "job/broken");
    choose("right", "later/idle");
    browser.click(".compare button");
    browser.until("document.title.startsWith('job/broken and later/idle')");
    assert!(browser.url().ends_with("compare/job/broken/with/later/idle/index.html"), "{}", browser.url());
    assert_eq!(browser.run("return document.querySelector('[name=left]').value"), "job/broken");
    choose("left", "later/good");
    browser.click(".compare button");
    browser.until("document.title.startsWith('good and idle')");
    expect_quiet(&browser, &viewer.page(""));
}

#[test]
fn trials_are_tagged_and_commented_in_the_browser() {
    let job = job();
    job.run().expect(1);
    let viewer = RunningViewer::start_with(&job, &["view", "--exclude-tag", "broken"]);
    let (browser, other) = (Browser::start(), Browser::start());
    let page = viewer.page("jobs/job/trials/idle/set/first__1/index.html");
    browser.open(&page);
    other.open(&viewer.page("jobs/job/index.html"));
    assert!(other.text().contains("33.3%"), "{}", other.text());
    other.run("window.isSamePage = true");
    other.hide(true);
    // The key opens the form.
    browser.press("c");
    browser.until("document.activeElement.matches('textarea')");
    browser.press("The task is <b>broken</b>.");
    browser.click("[name=tags]");
    browser.press("broken, looked-at");
    browser.click(".note .button");
    browser.until("document.querySelector('.comment')");
    assert!(browser.url().ends_with("/index.html#notes"), "{}", browser.url());
    assert!(browser.text().contains("The task is <b>broken</b>."), "{}", browser.text());
    // A job that has ended sends no events. Its page is updated when a person comes back to it.
    other.hide(false);
    other.until("document.body.innerText.includes('1 trial with the tag broken left out')");
    other.until("document.body.innerText.includes('40.0%')");
    other.until("document.querySelectorAll('#grid .cell.noted').length == 1");
    assert_eq!(other.run("return window.isSamePage"), json!(true));
    assert_eq!(other.run("return document.querySelector('#live').hidden"), json!(true));
    other
        .run("[...document.querySelectorAll('.count')].find(a => a.innerText.includes('looked-at')).click()");
    other.until("document.querySelectorAll('#trials tbody tr').length == 1");
    browser.click(".tag form button");
    browser.until("document.querySelectorAll('.tag form').length == 1");
    let listed = job.rollout(&["note", "jobs/job/idle/set/first__1", "--json"]).expect(0).stdout();
    assert!(listed.contains(r#""tags":["looked-at"]"#), "{listed}");
    // A mistake is explained.
    browser.open(&page);
    browser.press("c");
    browser.click("[name=tags]");
    browser.press("<b>");
    browser.click(".note .button");
    browser.until("document.body.innerText.includes('invalid tag')");
    expect_quiet(&other, &viewer.page(""));

    job.rollout(&["view", "--export", "pages"]).expect(0);
    other.open(&file_url(&job, "pages/jobs/job/trials/idle/set/first__1/index.html"));
    other.until("document.querySelector('.comment') && !document.querySelector('form[method=post]')");
    other.click(".tag a");
    other.until("document.querySelectorAll('#trials tbody tr').length == 1");
}

#[test]
fn the_conversation_of_an_agent_behind_the_gateway_is_followed() {
    let gate = Gate::new();
    let preset = format!(
        r#"
name: caller
untested: true
dialects: [chat]
execute: |
  ask() {{
    exec 4<> "/dev/tcp/127.0.0.1/${{ROLLOUT_MODEL_URL##*:}}"
    body='{{"model": "'$ROLLOUT_MODEL'", "messages": ['$1']}}'
    printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer %s\r\n' "$ROLLOUT_MODEL_TOKEN" >&4
    printf 'Content-Type: application/json\r\nContent-Length: %s\r\nConnection: close\r\n\r\n%s' "${{#body}}" "$body" >&4
    cat <&4 >/dev/null
    exec 4<&-
  }}
  first='{{"role": "user", "content": "the first question"}}'
  ask "$first"
  {wait}
  ask "$first"', {{"role": "assistant", "content": "an answer"}}, {{"role": "user", "content": "the second question"}}'
  touch /app/done
"#,
        wait = gate.wait().trim_end()
    );
    let server = ModelServer::always(ModelReply::text("an answer"));
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .file("caller.yaml", &preset)
        .task(TestTask::new("task"))
        .agent(json!({"preset": "./caller.yaml", "model": {"name": "m", "base_url": server.url()}}));
    let running = job.start();
    let arrival = gate.arrival();
    let viewer = RunningViewer::start(&job);
    let browser = Browser::start();
    browser.open(&viewer.page("jobs/job/trials/caller/set/task__1/index.html"));
    browser.run("window.isSamePage = true");
    browser.until("document.querySelector('.badge.running')");
    browser.until("document.body.innerText.includes('the first question')");
    browser.until("document.querySelectorAll('.conversation .step').length == 2");
    let facts = "[...document.querySelectorAll('.facts div')].map(fact => fact.innerText.split('\\n'))";
    let facts = browser.run(&format!("return {facts}"));
    let fact = |name: &str| {
        let mut facts = facts.as_array().unwrap().iter();
        facts.find(|fact| fact[0] == name).unwrap_or_else(|| panic!("{name} in {facts:?}"))[1].clone()
    };
    assert_eq!([fact("phase"), fact("model calls")], ["execute", "1"]);
    assert!(fact("running for").as_str().unwrap().ends_with('s'), "{facts}");
    assert_ne!(fact("tokens in"), "0");
    let shown = job.rollout(&["show", "jobs/job/caller/set/task__1"]).expect(0).stdout();
    assert!(shown.contains("phase") && shown.contains("execute"), "{shown}");
    assert!(shown.contains("1 call, ") && shown.contains(" tokens in, "), "{shown}");
    arrival.pass();
    running.finish().expect(0);
    browser.until("document.querySelector('.badge.solved')");
    browser.until("document.body.innerText.includes('the second question')");
    assert_eq!(browser.run("return window.isSamePage"), json!(true));
    expect_quiet(&browser, &viewer.page(""));
}

#[test]
fn more_pages_are_open_than_a_browser_has_connections() {
    let gate = Gate::new();
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "agent", "execute": format!("{}touch /app/done", gate.wait())}))
        .task(TestTask::new("task"));
    let running = job.start();
    let arrival = gate.arrival();
    let viewer = RunningViewer::start(&job);
    let browser = Browser::start();
    // Browsers have six connections for each server.
    for tab in 0..8 {
        browser.open_tab(&viewer.page("jobs/job/index.html"));
        browser.until("document.querySelector('#live:not([hidden])')");
        browser.hide(tab < 7);
    }
    browser.hide(true);
    assert_eq!(browser.run("return document.querySelector('#live').hidden"), json!(true));
    arrival.pass();
    running.finish().expect(0);
    assert!(browser.text().contains("running"), "{}", browser.text());
    browser.hide(false);
    browser.until("document.querySelector('.badge.finished')");
}

#[test]
fn the_chosen_row_of_a_live_page_keeps_its_place() {
    let gate = Gate::new();
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .set("n_concurrent_trials", json!(1))
        .agent(json!({"name": "quick", "execute": "true"}))
        .agent(json!({"name": "slow", "execute": gate.wait()}))
        .task(TestTask::new("first"))
        .task(TestTask::new("second"));
    let running = job.start();
    let arrival = gate.arrival();
    let viewer = RunningViewer::start(&job);
    let browser = Browser::start();
    browser.open(&viewer.page("jobs/job/trials.html"));
    browser.until("document.querySelector('.badge.running')");
    browser.until("document.querySelector('#live:not([hidden])')");
    browser.press("jj");
    browser.until("document.querySelector('.chosen a')?.textContent == 'quick/set/second__1'");
    arrival.pass();
    // The table is another one now.
    browser.until("!document.querySelector('.badge.running') || document.querySelectorAll('.badge.unsolved').length > 2");
    browser.until("document.querySelector('.chosen a')?.textContent == 'quick/set/second__1'");
    browser.press("j");
    browser.until("document.querySelector('.chosen a')?.textContent == 'slow/set/first__1'");
    drop(gate);
    running.finish();
}

#[test]
fn unsolved_trials_are_found_by_their_cause() {
    let job = job();
    job.run().expect(1);
    let viewer = RunningViewer::start(&job);
    let browser = Browser::start();
    browser.open(&viewer.page("jobs/job/index.html"));
    let text = browser.text();
    let unsolved = &text[text.find("Why trials are unsolved").unwrap()..];
    assert!(unsolved.contains("2 trials") && unsolved.contains("done is missing"), "{text}");
    browser.click("[href*='cause=unsolved-']");
    browser.until("document.querySelectorAll('#trials .badge.unsolved').length == 2");
    // A search stays within the cause.
    browser.click("[name=text]");
    browser.press("second\u{e007}");
    browser.until("document.querySelectorAll('#trials tbody tr').length == 1");
    assert!(browser.url().contains("cause=unsolved-0"), "{}", browser.url());
    browser.click("#trials a.open");
    browser.until("document.body.innerText.includes('2 trials with this cause')");
    // The order is that of the command. Statuses without trials are not offered.
    browser.open(&viewer.page("jobs/job/trials.html"));
    browser.run("document.querySelector('[name=sort]').value = 'status'");
    browser.click("form.filters button");
    browser.until("location.search.includes('sort=status')");
    let shown = "[...document.querySelectorAll('#trials .badge')].map(badge => badge.textContent)";
    assert_eq!(
        browser.run(&format!("return {shown}")),
        json!(["solved", "solved", "unsolved", "unsolved", "failed", "failed"])
    );
    let chips = "[...document.querySelectorAll('nav .chip')].map(chip => chip.textContent)";
    assert_eq!(
        browser.run(&format!("return {chips}")),
        json!(["all 6", "solved 2", "unsolved 2", "failed 2"])
    );
    expect_quiet(&browser, &viewer.page(""));
}

#[test]
fn an_export_is_read_without_a_server() {
    let server = ModelServer::turns([
        ModelReply::tool_call("bash", &json!({"command": "touch /app/done; echo made"})),
        ModelReply::text("Done."),
    ]);
    let model =
        json!({"name": "model", "model": {"name": "scripted", "base_url": server.url(), "max_retries": 0}});
    let job = job().agent(model);
    job.run().expect(1);
    let printed = job.rollout(&["view", "--export", "pages"]).expect(0).stdout();
    assert!(printed.starts_with("1 job in ") && printed.ends_with("open pages/index.html\n"), "{printed}");
    let browser = Browser::start();
    browser.open(&file_url(&job, "pages/index.html"));
    browser.click("#jobs a.open");
    browser.until("document.querySelector('#grid')");
    assert_eq!(
        browser.run("return getComputedStyle(document.querySelector('#grid .cell.failed')).display"),
        "inline-flex"
    );
    browser.click(".count.failed");
    browser.until("document.querySelector('#trials')");
    browser.click("#trials a.open");
    browser.until("document.querySelector('.error')");
    browser.open(&file_url(&job, "pages/jobs/job/trials/model/set/first__1/index.html"));
    browser.press("e");
    browser.until("[...document.querySelectorAll('.conversation pre')].some(pre => pre.textContent.includes('echo made'))");
    browser.click(".files a");
    browser.until("document.querySelector('pre.log.whole')");
    browser.open(&file_url(&job, "pages/compare/job/good/with/job/idle/index.html"));
    assert!(browser.text().contains("0 won, 2 lost"), "{}", browser.text());
    // Without a server, only the comparisons that were exported are offered.
    assert_eq!(browser.run("return document.querySelector('form.compare')"), json!(null));
    browser.run("document.querySelector('#others').open = true");
    assert_eq!(browser.run("return document.querySelectorAll('#others a').length"), json!(5));
    browser.run("[...document.querySelectorAll('#others a')].find(a => a.textContent.includes('idle and broken')).click()");
    browser.until("document.title.startsWith('idle and broken')");
    // The list of an agent has only its trials, also by status.
    browser.open(&file_url(&job, "pages/jobs/job/index.html"));
    browser
        .run("[...document.querySelectorAll('td.main a.open')].find(a => a.textContent == 'idle').click()");
    browser.until("document.querySelectorAll('#trials tbody tr').length == 2");
    browser.run(
        "[...document.querySelectorAll('.chip')].find(a => a.textContent.startsWith('unsolved')).click()",
    );
    browser.until("document.querySelector('.chip[aria-current]')?.textContent.startsWith('unsolved')");
    assert_eq!(browser.run("return document.querySelectorAll('#trials tbody tr').length"), json!(2));
    expect_quiet(&browser, "file://");
    assert!(!fs::read_to_string(job.root().join("pages/index.html")).unwrap().contains("data-events"));

    let refused = job.rollout(&["view", "--export", "pages"]).expect(2).stderr();
    insta::assert_snapshot!(refused, @"
    error: pages is not empty
    hint: choose a new or empty directory
    ");
}

#[test]
fn rollouts_of_a_model_are_shown_like_trials() {
    let server = ModelServer::arithmetic();
    let sums =
        json!([{"question": "What is 2+3?", "answer": "5"}, {"question": "What is 4+4?", "answer": "8"}]);
    let interaction = json!({"dataset": sums, "rubric": [{"match": "numeric"}]});
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "model", "model": {"name": "scripted", "base_url": server.url()}}))
        .set("datasets", json!([{"name": "sums", "interaction": interaction}]));
    job.run().expect(0);
    let viewer = RunningViewer::start(&job);
    let browser = Browser::start();
    browser.open(&viewer.page("jobs/job/index.html"));
    browser.click("#grid a.cell");
    browser.until("document.querySelector('.step')");
    assert!(browser.text().contains("2+3"), "{}", browser.text());
    expect_quiet(&browser, &viewer.page(""));
}
