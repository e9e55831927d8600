//! `note`: tags and comments of trials, and what they change.

use std::fs;

use rollout_testkit::{TestJob, TestTask};
use serde_json::{Value, json};

/// A job of two agents: one solves both tasks, the other none.
fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "good", "execute": "touch /app/done"}))
        .agent(json!({"name": "idle", "execute": "true"}))
        .task(TestTask::new("first"))
        .task(TestTask::new("second"))
}

fn object(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_trial_is_tagged_and_commented_and_everything_shows_it() {
    let job = job();
    job.run().expect(0);
    let trial = "jobs/job/idle/set/first__1";
    assert_eq!(job.rollout(&["note", trial]).expect(0).stdout(), "the trial has no notes\n");
    let added =
        job.rollout(&["note", trial, "The tests need\nthe network.", "--tag", "broken", "--tag", "v2"]);
    let added = added.expect(0).stdout();
    assert!(added.starts_with("idle/set/first__1  broken v2\n  20"), "{added}");
    assert!(added.ends_with("  The tests need\n                    the network.\n"), "{added}");
    job.rollout(&["note", trial, "--untag", "v2"]).expect(0);

    let listed = object(&job.rollout(&["note", trial, "--json"]).expect(0).stdout());
    assert_eq!((&listed["trial"], &listed["tags"]), (&json!("idle/set/first__1"), &json!(["broken"])));
    assert_eq!(listed["comments"][0]["text"], "The tests need\nthe network.");
    assert_eq!(job.rollout(&["note", "jobs/job", "--json"]).expect(0).stdout().lines().count(), 1);

    let shown = job.rollout(&["show", trial]).expect(0).stdout();
    assert!(shown.contains("tags") && shown.contains("broken") && shown.contains("the network."), "{shown}");
    let table = job.rollout(&["list", "jobs/job"]).expect(0).stdout();
    assert!(table.lines().next().unwrap().ends_with("cost  tags    evidence"), "{table}");
    let tagged = object(&job.rollout(&["list", "jobs/job", "--tag", "broken", "--json"]).expect(0).stdout());
    assert_eq!((&tagged["tags"], &tagged["comments"]), (&json!(["broken"]), &json!(1)));
    // A line for each note, and none is changed.
    let lines = fs::read_to_string(job.dir().join("notes.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 2, "{lines}");
}

#[test]
fn a_pattern_tags_all_trials_of_a_task() {
    let job = job();
    job.run().expect(0);
    let added = job.rollout(&["note", "jobs/job/*/*/first__*", "--tag", "broken"]).expect(0).stdout();
    assert_eq!(added, "good/set/first__1  broken\nidle/set/first__1  broken\n");
    let none = job.rollout(&["note", "jobs/job/*/*/third__*", "--tag", "broken"]).expect(2).stderr();
    assert!(none.starts_with("error: the job jobs/job has no trial */*/third__*\n"), "{none}");
    let whole = job.rollout(&["note", "jobs/job", "--tag", "broken"]).expect(2).stderr();
    assert!(whole.starts_with("error: jobs/job is a job, not a trial\n"), "{whole}");
}

#[test]
fn rates_and_comparisons_leave_out_trials_by_tag_and_say_so() {
    let job = job();
    job.run().expect(0);
    job.rollout(&["note", "jobs/job/*/*/first__*", "--tag", "broken"]).expect(0);
    let compared =
        |arguments: &[&str]| job.rollout(&[&["compare", "jobs/job"], arguments].concat()).expect(0);
    let report = compared(&["--exclude-tag", "broken"]).stdout();
    assert!(report.contains("\ntrials left out by tag broken: 1 of good, 1 of idle\n"), "{report}");
    assert!(report.contains("only good solves 1 task\n  set/second"), "{report}");
    let report = object(&compared(&["--exclude-tag", "broken", "--output", "json"]).stdout());
    assert_eq!(report["excluded_tags"], json!(["broken"]));
    assert_eq!(
        (&report["sides"][0]["excluded_by_tag"], &report["sides"][0]["trials"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(report["contrasts"][0]["tasks_in_both"], 1);
    let whole = object(&compared(&["--output", "json"]).stdout());
    assert_eq!((whole.get("excluded_tags"), &whole["contrasts"][0]["tasks_in_both"]), (None, &json!(2)));

    job.rollout(&["note", "jobs/job/idle/set/second__1", "--tag", "broken"]).expect(0);
    let jobs = object(&job.rollout(&["list", "--exclude-tag", "broken", "--json"]).expect(0).stdout());
    assert_eq!((&jobs["pass_rate"], &jobs["excluded_by_tag"]), (&json!(1.0), &json!(3)));
    let trials = job.rollout(&["list", "jobs/job", "--exclude-tag", "broken"]).expect(0).stdout();
    assert!(
        trials.contains("1 of 4 trials") && trials.contains("3 trials left out by tag: broken"),
        "{trials}"
    );
}

#[test]
fn notes_survive_a_rerun_and_are_exported() {
    let job = job();
    job.run().expect(0);
    let trial = "jobs/job/idle/set/first__1";
    job.rollout(&["note", trial, "=1+1", "--tag", "broken"]).expect(0);
    job.rollout(&["resume", "jobs/job", "--rerun", "unsolved"]).expect(0);
    let listed = object(&job.rollout(&["note", trial, "--json"]).expect(0).stdout());
    assert_eq!(listed["tags"], json!(["broken"]));
    job.rollout(&["export", "csv", "jobs/job", "-o", "tables"]).expect(0);
    let table = fs::read_to_string(job.root().join("tables/trials.csv")).unwrap();
    let (heading, rows) = table.split_once("\r\n").unwrap();
    assert!(heading.ends_with(",note_tags,note_comments"), "{heading}");
    let row = rows.lines().find(|row| row.contains("idle/set/first__1")).unwrap();
    assert!(row.contains(r#""[""broken""]""#) && row.contains(r#"""text"":""=1+1"""#), "{row}");
}

#[test]
fn invalid_and_damaged_notes_are_reported() {
    let job = job();
    job.run().expect(0);
    let trial = "jobs/job/idle/set/first__1";
    let tag = job.rollout(&["note", trial, "--tag", "<b>x</b>"]).expect(2).stderr();
    assert!(tag.contains("invalid tag \"<b>x</b>\""), "{tag}");
    let long = job.rollout(&["note", trial, &"x".repeat(10_001)]).expect(2).stderr();
    assert_eq!(long, "error: a comment can have at most 10000 characters, and this one has 10001\n");
    insta::assert_snapshot!(job.rollout(&["note", trial, " "]).expect(2).stderr(), @"
    error: the note is empty
    hint: write a comment, or add or remove a tag
    ");
    // The terminal is not changed by a comment that another program wrote.
    let line = json!({"at": "2026-01-02T03:04:05Z", "trial": "idle/set/first__1", "comment": "\u{1b}[2Jgone\u{202e}"});
    fs::write(job.dir().join("notes.jsonl"), format!("{line}\n")).unwrap();
    let printed = job.rollout(&["note", trial]).expect(0).stdout();
    assert_eq!(printed, "idle/set/first__1\n  2026-01-02 03:04  gone\n");
    fs::write(job.dir().join("notes.jsonl"), format!("nonsense\n{line}\n")).unwrap();
    let damaged = job.rollout(&["note", trial]).expect(2).stderr();
    assert!(damaged.starts_with("error: line 1 of jobs/job/notes.jsonl is damaged\n"), "{damaged}");
    // What does not need the notes works without them.
    assert!(job.rollout(&["list", "jobs/job"]).expect(0).stderr().contains("notes.jsonl is damaged"));
    job.rollout(&["show", trial]).expect(0);
    job.rollout(&["list", "jobs/job", "--exclude-tag", "x"]).expect(2);
}
