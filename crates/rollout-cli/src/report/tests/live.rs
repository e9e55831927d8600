//! The live display.

use std::time::Duration;

use rollout::{
    event::{Event, ModelProgress, Phase},
    name::TrialIndex,
};

use super::{a_job, trial};
use crate::report::{board::Board, frame};

fn drawn(board: &Board, seconds: u64, width: usize, height: usize) -> String {
    let lines = frame::frame(board, Duration::from_secs(seconds), width, height);
    anstream::adapter::strip_str(&lines.join("\n")).to_string()
}

#[test]
fn the_live_display_shows_running_trials_counts_and_metrics() {
    let mut board = Board::default();
    for event in &a_job()[..12] {
        board.apply(event, Duration::from_secs(27));
    }
    let other =
        Event::TrialStarted { index: TrialIndex(4), trial: trial("oracle", "a-task-with-a-long-name", 1) };
    board.apply(&other, Duration::from_secs(30));
    insta::assert_snapshot!(drawn(&board, 31, 90, 24), @"
    ⠋ shell · sort #2                      execute      0:04
    ⠋ oracle · a-task-with-a-long-name #1  queue        0:01
    ━━━━━━━━━━━━━━━━━━──────────── 3/5 · 2 completed · 1 failed · 0:31, about 20s left
    oracle mean 1 max 1 · shell mean 0 max 0
    ");
    insta::assert_snapshot!(drawn(&board, 31, 48, 24), @"
    ⠋ shell · sort #2              execute      0:04
    ⠋ oracle · a-task-with-a-… #1  queue        0:01
    ━━━━━━━───── 3/5 · 2 completed · 1 failed · 0:31
    oracle mean 1 max 1 · shell mean 0 max 0
    ");
}

#[test]
fn a_running_agent_shows_what_it_used_of_its_model() {
    let mut board = Board { total: 1, ..Board::default() };
    let trial = trial("codex", "hello", 1);
    let index = TrialIndex(0);
    board.apply(&Event::TrialStarted { index, trial }, Duration::ZERO);
    board.apply(&Event::PhaseStarted { index, phase: Phase::Start }, Duration::ZERO);
    let what = "a node: 0/3 nodes are available".to_owned();
    board.apply(&Event::TrialWaiting { index, what }, Duration::from_secs(5));
    insta::assert_snapshot!(drawn(&board, 70, 100, 24).lines().next().unwrap(), @"⠋ codex · hello  start        1:10  waiting for a node: 0/3 nodes are available");
    board.apply(&Event::PhaseStarted { index, phase: Phase::Execute }, Duration::ZERO);
    let used = ModelProgress { turns: 12, input_tokens: 34_567, output_tokens: 890, cost: Some(0.125) };
    board.apply(&Event::ModelUsed { index, used }, Duration::from_secs(5));
    insta::assert_snapshot!(drawn(&board, 70, 80, 24).lines().next().unwrap(), @"⠋ codex · hello  execute      1:10  turn 12 · 35k tokens · $0.12");
    insta::assert_snapshot!(drawn(&board, 70, 60, 24).lines().next().unwrap(), @"⠋ codex · hello  execute      1:10  turn 12 · 35k · $0.12");
}

#[test]
fn all_that_an_agent_used_fits_beside_long_names_in_80_columns() {
    let mut board = Board { total: 9, ..Board::default() };
    for (number, task) in ["hello", "a-task-with-a-name-that-is-longer-than-others"].into_iter().enumerate() {
        let index = TrialIndex(number as u64);
        let trial = trial("claude-code", task, number as u32 + 1);
        board.apply(&Event::TrialStarted { index, trial }, Duration::ZERO);
        board.apply(&Event::PhaseStarted { index, phase: Phase::Execute }, Duration::ZERO);
        let used =
            ModelProgress { turns: 112, input_tokens: 1_234_567, output_tokens: 890, cost: Some(100.04) };
        board.apply(&Event::ModelUsed { index, used }, Duration::from_secs(5));
    }
    let drawn = |width: usize| {
        let text = drawn(&board, 4000, width, 24);
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        text
    };
    insta::assert_snapshot!(drawn(199), @"
    ⠋ claude-code · hello #1                                          execute   1:06:40  turn 112 · 1.2M tokens · $100.04
    ⠋ claude-code · a-task-with-a-name-that-is-longer-than-others #2  execute   1:06:40  turn 112 · 1.2M tokens · $100.04
    ────────────────────────────── 0/9 · 0 completed · 0 failed · 1:06:40
    ");
    insta::assert_snapshot!(drawn(79), @"
    ⠋ claude-code · hello #1    execute   1:06:40  turn 112 · 1.2M tokens · $100.04
    ⠋ claud… · a-task-with… #2  execute   1:06:40  turn 112 · 1.2M tokens · $100.04
    ────────────────────────────── 0/9 · 0 completed · 0 failed · 1:06:40
    ");
    insta::assert_snapshot!(drawn(59), @"
    ⠋ claude-c… · hello #1  execute   1:06:40  turn 112
    ⠋ cla… · a-task-wi… #2  execute   1:06:40  turn 112
    ──────────────────── 0/9 · 0 completed · 0 failed · 1:06:40
    ");
    insta::assert_snapshot!(drawn(40), @"
    ⠋ claude-… · hello #1  execute   1:06:40
    ⠋ cla… · a-task-w… #2  execute   1:06:40
    ─ 0/9 · 0 completed · 0 failed · 1:06:40
    ");
}

#[test]
fn a_build_or_pull_shows_the_last_line_of_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let trial = trial("oracle", "hello", 1);
    let logs = dir.path().join(trial.to_string()).join("environment");
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join("build.txt"), "#4 CACHED\n\n#5 Unpacking \u{1b}[2Jpython3 (3.11.2-1+b1)\n\n")
        .unwrap();
    let mut board = Board { directory: dir.path().to_owned(), total: 1, ..Board::default() };
    board.apply(&Event::TrialStarted { index: TrialIndex(0), trial }, Duration::ZERO);
    board.apply(&Event::PhaseStarted { index: TrialIndex(0), phase: Phase::Image }, Duration::ZERO);
    board.look_at_images(24);
    insta::assert_snapshot!(drawn(&board, 70, 66, 24).lines().next().unwrap(), @"⠋ oracle · hello  image        1:10  #5 Unpacking python3 (3.11.2…");
    insta::assert_snapshot!(drawn(&board, 70, 48, 24).lines().next().unwrap(), @"⠋ oracle · hello  image        1:10  #5 Unpacki…");
    board.apply(&Event::PhaseStarted { index: TrialIndex(0), phase: Phase::Start }, Duration::ZERO);
    board.look_at_images(24);
    insta::assert_snapshot!(drawn(&board, 70, 66, 24).lines().next().unwrap(), @"⠋ oracle · hello  start        1:10");
}

#[test]
fn more_trials_than_rows_are_counted() {
    let mut board = Board::default();
    board.apply(&a_job()[0], Duration::ZERO);
    for index in 0..12 {
        let trial = trial("oracle", &format!("task-{index}"), 1);
        board.apply(&Event::TrialStarted { index: TrialIndex(index), trial }, Duration::ZERO);
    }
    insta::assert_snapshot!(drawn(&board, 4000, 80, 6), @"
    ⠋ oracle · task-0  queue     1:06:40
    ⠋ oracle · task-1  queue     1:06:40
      and 10 more
    ────────────────────────────── 0/5 · 0 completed · 0 failed · 1:06:40
    ");
    assert!(drawn(&board, 4000, 80, 15).contains("task-11"), "twelve rows show twelve trials");
}
