//! What is known of a trial that still runs, from the files that grow while it does.

use std::{
    fs,
    io::{self, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;

use crate::{
    layout::{TrialDir, open_below},
    lines::Lines,
};
use rollout_core::{
    event::{ModelProgress, Phase},
    response::TokenUsage,
};

/// The phase of a running trial: the last one that has begun to write. Blocks.
pub fn phase(trial: &TrialDir) -> Phase {
    let trial = trial.current_step();
    let has_output = |dir: PathBuf| dir.join("stdout.txt").exists();
    // The conversation of a model is saved when it has ended.
    if has_output(trial.verifier()) || trial.trajectory().exists() {
        Phase::Verify
    } else if has_output(trial.command()) || trial.live_conversation().exists() || trial.calls().exists() {
        Phase::Execute
    } else if has_output(trial.setup()) {
        Phase::Install
    } else if trial.build_log().exists() {
        Phase::Image
    } else {
        Phase::Start
    }
}

/// How long a trial has been running; None if the file system does not record when a directory was created. Blocks.
pub fn age(trial: &TrialDir) -> Option<Duration> {
    fs::metadata(trial.path()).and_then(|dir| dir.created()).ok()?.elapsed().ok()
}

/// What the agent of a running trial used of its model so far, from the calls that the gateway has recorded, or from
/// the conversation of a model that works on the task itself.
#[derive(Debug, Default)]
pub struct LiveUsage {
    /// The file that was read, and the length of its whole lines.
    read: Option<(PathBuf, u64)>,
    used: ModelProgress,
}

/// What is needed of a call, or of a message of a conversation.
#[derive(Deserialize)]
struct CallOutline {
    usage: Option<TokenUsage>,
    cost: Option<f64>,
}

impl LiveUsage {
    /// Reads the calls that were added since the last time, and returns the sum of all; None if there are none. Of a task
    /// with steps, they are those of the newest step. Files outside of the job are not read. Blocks.
    pub fn update(&mut self, job: &Path, trial: &TrialDir) -> io::Result<Option<ModelProgress>> {
        let step = trial.current_step();
        let path =
            Some(step.live_conversation()).filter(|path| path.exists()).unwrap_or_else(|| step.calls());
        let mut file = match open_below(job, &path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return of_ended(job, &step),
            Err(error) => return Err(error),
        };
        let length = file.metadata()?.len();
        let known = self.read.take().filter(|(known, whole)| *known == path && *whole <= length);
        let start = match known {
            Some((_, whole)) => whole,
            None => {
                self.used = ModelProgress::default();
                0
            }
        };
        file.seek(SeekFrom::Start(start))?;
        let mut lines = Lines::from(file);
        let mut whole = start;
        while let Some(line) = lines.next_line()? {
            // The last line may be incomplete.
            if !line.bytes.ends_with(b"\n") {
                break;
            }
            whole += line.bytes.len() as u64;
            if let Ok(call) = serde_json::from_slice(line.bytes) {
                add(&mut self.used, &call);
            }
        }
        self.read = Some((path, whole));
        Ok((self.used.turns > 0).then_some(self.used))
    }
}

/// A conversation that has ended.
#[derive(Deserialize)]
struct Ended {
    turns: Vec<EndedTurn>,
}

#[derive(Deserialize)]
struct EndedTurn {
    response: CallOutline,
}

/// The usage of a conversation that has ended, whose file replaces the live one while the tests run.
fn of_ended(job: &Path, step: &TrialDir) -> io::Result<Option<ModelProgress>> {
    let file = match open_below(job, &step.trajectory()) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let ended: Ended = serde_json::from_reader(io::BufReader::new(file))?;
    let mut used = ModelProgress::default();
    ended.turns.iter().for_each(|turn| add(&mut used, &turn.response));
    Ok((used.turns > 0).then_some(used))
}

fn add(used: &mut ModelProgress, call: &CallOutline) {
    let Some(usage) = call.usage else { return };
    used.turns += 1;
    used.input_tokens += usage.input_tokens();
    used.output_tokens += usage.completion_tokens;
    used.cost = match (used.cost, call.cost.or(usage.cost)) {
        (Some(before), Some(now)) => Some(before + now),
        (before, now) => before.or(now),
    };
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_phase_is_the_last_one_with_output() {
        let dir = tempfile::tempdir().unwrap();
        let trial = TrialDir::new(dir.path());
        let write = |file: PathBuf| {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        };
        assert_eq!(phase(&trial), Phase::Start);
        for (file, expected) in [
            (trial.build_log(), Phase::Image),
            (trial.setup().join("stdout.txt"), Phase::Install),
            (trial.calls(), Phase::Execute),
            (trial.command().join("stdout.txt"), Phase::Execute),
            (trial.verifier().join("stdout.txt"), Phase::Verify),
            (trial.step("second").command().join("stdout.txt"), Phase::Execute),
            (trial.step("second").verifier().join("stdout.txt"), Phase::Verify),
        ] {
            write(file.clone());
            assert_eq!(phase(&trial), expected, "{}", file.display());
        }
    }

    #[test]
    fn calls_are_added_up_once_each_and_a_line_that_is_being_written_later() {
        let dir = tempfile::tempdir().unwrap();
        let trial = TrialDir::new(dir.path());
        let mut usage = LiveUsage::default();
        let mut update = || usage.update(dir.path(), &trial).unwrap();
        assert_eq!(update(), None);
        fs::create_dir_all(trial.calls().parent().unwrap()).unwrap();
        let call = r#"{"usage":{"prompt_tokens":100,"completion_tokens":7},"cost":0.5,"request":{}}"#;
        let failed = r#"{"usage":null,"cost":null}"#;
        let (start, end) = call.split_at(30);
        fs::write(trial.calls(), format!("{call}\n{failed}\n{start}")).unwrap();
        let one = ModelProgress { turns: 1, input_tokens: 100, output_tokens: 7, cost: Some(0.5) };
        assert_eq!([update(), update()], [Some(one), Some(one)]);
        let mut file = fs::File::options().append(true).open(trial.calls()).unwrap();
        writeln!(file, "{end}").unwrap();
        let two = ModelProgress { turns: 2, input_tokens: 200, output_tokens: 14, cost: Some(1.0) };
        assert_eq!(update(), Some(two));
    }

    #[test]
    fn responses_of_a_model_that_works_on_the_task_itself_are_added_up() {
        let dir = tempfile::tempdir().unwrap();
        let trial = TrialDir::new(dir.path());
        let said = r#"{"role":"user","content":"go"}
{"role":"assistant","content":"a","usage":{"prompt_tokens":100,"cached_tokens":90,"completion_tokens":7,"cost":0.5}}
{"role":"tool","content":"done"}
{"role":"assistant","content":"b","usage":{"prompt_tokens":100,"cached_tokens":90,"completion_tokens":3,"cost":0.25}}
"#;
        let step = trial.step("one");
        fs::create_dir_all(step.path()).unwrap();
        fs::write(step.live_conversation(), said).unwrap();
        let used = LiveUsage::default().update(dir.path(), &trial).unwrap();
        let expected = ModelProgress { turns: 2, input_tokens: 200, output_tokens: 10, cost: Some(0.75) };
        assert_eq!(used, Some(expected));
    }
}
