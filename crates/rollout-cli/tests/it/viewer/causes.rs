//! Why trials are unsolved, as far as pages have read it.

use std::fs::{self, File};

use rollout_testkit::{LargeJob, TestJob};

use super::RunningViewer;

/// The viewer of a large job.
fn view(job: &LargeJob) -> RunningViewer {
    let dir = job.dir().display().to_string();
    RunningViewer::start_with(&TestJob::new(env!("CARGO_BIN_EXE_rollout")), &["view", &dir])
}

#[test]
fn each_request_reads_why_some_of_many_trials_are_unsolved() {
    let job = LargeJob::containers(1_000);
    let viewer = view(&job);
    let get = |path: &str| viewer.get(&viewer.path(path), "");
    // These pages show no cause that must be read.
    for path in ["index.html", "jobs/job/trials.html", "jobs/job/trials/agent/set/task-000000__2/index.html"]
    {
        assert!(get(path).starts_with("HTTP/1.1 200"), "{path}");
    }
    for (read, rest) in [("200 trials", "and 300 more trials"), ("400 trials", "and 100 more trials")] {
        let page = get("jobs/job/index.html");
        assert!(page.contains(read) && page.contains(rest), "{rest}: {page}");
    }
    let page = get("jobs/job/trials.html?cause=unsolved-0");
    assert!(page.contains("500 of 1000 trials"), "{page}");
    let page = get("jobs/job/index.html");
    assert!(page.contains("500 trials") && !page.contains("more trial"), "{page}");
}

#[test]
fn a_trial_that_cannot_be_read_does_not_hide_why_others_are_unsolved() {
    let job = LargeJob::containers(20);
    let viewer = view(&job);
    let get = |path: &str| viewer.get(&viewer.path(path), "");
    assert!(get("index.html").starts_with("HTTP/1.1 200"));

    // The viewer has read the job before the file is damaged, and cannot notice it.
    let path = job.dir().join("journal.jsonl");
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let mut lines: Vec<String> = fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
    let unsolved: Vec<usize> =
        (0..lines.len()).filter(|line| lines[*line].contains("\"reward\":0.0,")).collect();
    assert_eq!(unsolved.len(), 10);
    let damaged = &mut lines[unsolved[4]];
    *damaged = damaged.replace("\"reward\":0.0,", "\"reward\":\"x\",");
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    File::options().append(true).open(&path).unwrap().set_modified(modified).unwrap();

    for _ in 0..2 {
        let page = get("jobs/job/index.html");
        assert!(page.starts_with("HTTP/1.1 200") && page.contains("9 trials"), "{page}");
    }
}
