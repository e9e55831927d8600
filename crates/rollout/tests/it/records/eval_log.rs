//! Eval logs as files: where they lie, how they look, what is read back.

use std::{fs, path::Path};

use proptest::prelude::*;
use rollout::export::eval_log::{
    AgentInfo, BenchmarkSubset, EpisodeRecord, Episodes, EvalLog, EvalLogError, ExperimentRecord, Findings,
    InvestigatorLlmConfig, RecordDialect, Steps, UsageSummary, Verifier, experiment_id, success, tool_names,
};
use rollout_testkit::Python;
use serde_json::{Map, Value, json};

fn experiment() -> ExperimentRecord {
    let Value::Object(config) = json!({ "model": "small", "temperature": 1e-7 }) else { unreachable!() };
    ExperimentRecord {
        experiment_id: experiment_id("my_exp", "/tmp/out"),
        experiment_name: "my_exp".into(),
        timestamp: 1_700_000_000.25,
        framework_version: "0.1.0".into(),
        agent: AgentInfo::from_config(config, "chat", "0.1.0"),
        benchmark_name: "mathématiques".into(),
        benchmark_version: None,
        benchmark_subset: BenchmarkSubset::new("mathématiques", 2),
        investigator_llm_config: None,
        output_dir: Some("/tmp/out".into()),
        unknown: Map::new(),
    }
}

/// An episode with one action, and the reward it ended with.
fn episode(task: &str, reward: f64) -> EpisodeRecord {
    let mut steps = Steps::default();
    steps.environment(0.0, None);
    steps.agent(None);
    steps.environment(reward, None);
    EpisodeRecord {
        experiment_id: experiment_id("my_exp", "/tmp/out"),
        task_id: task.into(),
        task_version_hash: None,
        seed: None,
        split: None,
        task_description: None,
        tool_names: tool_names(&[json!({ "name": "click" })]),
        success: Some(success(steps.reward())),
        reward: Some(steps.reward()),
        error_type: steps.error_type().map(str::to_owned),
        n_steps: steps.n_steps(),
        n_agent_steps: steps.n_agent_steps(),
        n_env_steps: steps.n_env_steps(),
        wall_time_s: Some(10.0),
        usage: UsageSummary::default(),
        trajectory_id: format!("{task}__1"),
        timestamp: 1_700_000_000.0,
        verifier: None,
        findings: None,
        unknown: Map::new(),
    }
}

fn log() -> EvalLog {
    EvalLog { experiment: experiment(), episodes: vec![episode("add", 1.0), episode("subtract", 0.0)] }
}

/// All files below a directory, in order.
fn files(dir: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                dirs.push(entry);
            } else {
                files.push(entry.strip_prefix(dir).unwrap().display().to_string());
            }
        }
    }
    files.sort();
    files
}

#[test]
fn records_are_next_to_their_trajectories_and_can_be_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let log = log();
    log.save(dir.path()).unwrap();
    assert_eq!(
        files(dir.path()),
        [
            "episodes/add__1/episode_record.json",
            "episodes/subtract__1/episode_record.json",
            "experiment_record.json"
        ]
    );
    let loaded = EvalLog::load(dir.path()).unwrap();
    assert_eq!(loaded, log);
    assert!(loaded.episodes.iter().all(|episode| episode.experiment_id == loaded.experiment.experiment_id));
}

#[test]
fn an_experiment_looks_as_python_would_write_it() {
    let dir = tempfile::tempdir().unwrap();
    experiment().save(dir.path()).unwrap();
    insta::assert_snapshot!(fs::read_to_string(dir.path().join("experiment_record.json")).unwrap(), @r#"
    {
      "experiment_id": "602c86b88de8b08f",
      "experiment_name": "my_exp",
      "timestamp": 1700000000.25,
      "framework_version": "0.1.0",
      "agent": {
        "agent_id": "c693d52901c91787cd4ee55a0f9cbba8cac2cef685238bbe39c647a3bd0ee40b",
        "config_type": "chat",
        "config": {
          "model": "small",
          "temperature": 1e-07
        },
        "llm_model": "small",
        "framework_version": "0.1.0",
        "dependency_versions": {},
        "git_commit": null,
        "git_remote_url": null,
        "git_is_dirty": null,
        "cube_standard_git_commit": null,
        "cube_standard_git_is_dirty": null,
        "description": null
      },
      "benchmark_name": "mathématiques",
      "benchmark_version": null,
      "benchmark_subset": {
        "name": "mathématiques",
        "n_tasks": 2,
        "filter": null
      },
      "investigator_llm_config": null,
      "output_dir": "/tmp/out"
    }
    "#);
}

#[test]
fn lines_are_whole_records_in_the_order_of_their_directories() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = log();
    log.episodes.reverse();
    log.save(dir.path()).unwrap();
    let [streamed, held] = ["out/streamed.jsonl", "out/held.jsonl"].map(|name| dir.path().join(name));
    assert_eq!(Episodes::read(dir.path()).unwrap().to_jsonl(&streamed).unwrap(), 2);
    EvalLog::load(dir.path()).unwrap().to_jsonl(&held).unwrap();
    let text = fs::read_to_string(&streamed).unwrap();
    assert_eq!(text, fs::read_to_string(&held).unwrap());
    insta::assert_snapshot!(text, @r#"
    {"experiment_id":"602c86b88de8b08f","task_id":"add","task_version_hash":null,"seed":null,"split":null,"task_description":null,"tool_names":["click"],"success":true,"reward":1.0,"error_type":null,"n_steps":3,"n_agent_steps":1,"n_env_steps":2,"wall_time_s":10.0,"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0,"cached_tokens":0,"cache_creation_tokens":0,"total_cost_usd":0.0,"n_llm_calls":0},"trajectory_id":"add__1","timestamp":1700000000.0,"verifier":null,"findings":null}
    {"experiment_id":"602c86b88de8b08f","task_id":"subtract","task_version_hash":null,"seed":null,"split":null,"task_description":null,"tool_names":["click"],"success":false,"reward":0.0,"error_type":null,"n_steps":3,"n_agent_steps":1,"n_env_steps":2,"wall_time_s":10.0,"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0,"cached_tokens":0,"cache_creation_tokens":0,"total_cost_usd":0.0,"n_llm_calls":0},"trajectory_id":"subtract__1","timestamp":1700000000.0,"verifier":null,"findings":null}
    "#);
}

#[test]
fn a_retried_episode_replaces_its_record() {
    let dir = tempfile::tempdir().unwrap();
    log().save(dir.path()).unwrap();
    episode("subtract", 0.5).save(dir.path()).unwrap();
    let rewards: Vec<Option<f64>> =
        Episodes::read(dir.path()).unwrap().map(|episode| episode.unwrap().reward).collect();
    assert_eq!(rewards, [Some(1.0), Some(0.5)]);
}

#[test]
fn findings_verifiers_and_unknown_fields_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = log();
    let episode = &mut log.episodes[0];
    episode.verifier = Some(Verifier { reference: Some("https://x/tree/abc".into()), ..Verifier::default() });
    episode.findings = Some(Findings { feasible: Some(false), ..Findings::default() });
    episode.unknown.insert("judge_metadata".into(), json!({ "cost_usd": 1e-7, "model": "日" }));
    log.experiment.unknown.insert("is_official".into(), json!(true));
    log.save(dir.path()).unwrap();
    assert_eq!(EvalLog::load(dir.path()).unwrap(), log);
}

#[test]
fn files_that_are_not_episodes_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    log().save(dir.path()).unwrap();
    fs::create_dir(dir.path().join("episodes/running__1")).unwrap();
    fs::write(dir.path().join("episodes/notes.txt"), "by hand").unwrap();
    assert_eq!(Episodes::read(dir.path()).unwrap().count(), 2);
    fs::remove_dir_all(dir.path().join("episodes")).unwrap();
    assert!(EvalLog::load(dir.path()).unwrap().episodes.is_empty());
}

#[test]
fn a_broken_record_is_named_and_leaves_no_lines() {
    let dir = tempfile::tempdir().unwrap();
    log().save(dir.path()).unwrap();
    let broken = dir.path().join("episodes/subtract__1/episode_record.json");
    fs::write(&broken, "{").unwrap();
    let lines = dir.path().join("lines.jsonl");
    let error = Episodes::read(dir.path()).unwrap().to_jsonl(&lines).unwrap_err();
    assert_eq!(error.to_string(), format!("{} is not a valid eval log record", broken.display()));
    assert_eq!(files(dir.path()).len(), 3);
    fs::remove_file(dir.path().join("experiment_record.json")).unwrap();
    assert!(matches!(EvalLog::load(dir.path()), Err(EvalLogError::Read { .. })));
}

#[test]
fn an_episode_cannot_leave_its_place() {
    let dir = tempfile::tempdir().unwrap();
    for id in ["", ".", "..", "../x", "/tmp/x", "a/b", "a/", "./a"] {
        let record = EpisodeRecord { trajectory_id: id.into(), ..episode("add", 1.0) };
        assert!(matches!(record.save(dir.path()), Err(EvalLogError::TrajectoryId(_))), "{id}");
    }
    assert!(files(dir.path()).is_empty());
}

#[test]
fn python_reads_the_files_and_makes_the_same_ids_and_text() {
    const PROGRAM: &str = r#"
import hashlib, json, pathlib, sys
dir = pathlib.Path(sys.stdin.read())
text = (dir / "experiment_record.json").read_text()
record = json.loads(text)
assert text == json.dumps(record, indent=2, ensure_ascii=False) + "\n"
config = json.dumps(record["agent"]["config"], sort_keys=True)
assert record["agent"]["agent_id"] == hashlib.sha256(config.encode()).hexdigest()
name = record["experiment_name"] + record["output_dir"]
assert record["experiment_id"] == hashlib.sha256(name.encode()).hexdigest()[:16]
episodes = [json.loads(path.read_text()) for path in sorted(dir.glob("episodes/*/episode_record.json"))]
lines = (dir / "lines.jsonl").read_text().splitlines()
assert [json.loads(line) for line in lines] == episodes
print(*(episode["task_id"] for episode in episodes))
"#;
    let dir = tempfile::tempdir().unwrap();
    log().save(dir.path()).unwrap();
    log().to_jsonl(&dir.path().join("lines.jsonl")).unwrap();
    assert_eq!(Python::new().run(PROGRAM, dir.path().to_str().unwrap()), "add subtract\n");
}

/// The most memory that this process has used, in kilobytes.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn ten_thousand_episodes_stream() {
    if !rollout_testkit::in_own_process("records::eval_log::ten_thousand_episodes_stream") {
        return;
    }
    const EPISODES: u64 = 10_000;
    let dir = tempfile::tempdir().unwrap();
    let large = EpisodeRecord { task_description: Some("x".repeat(4_000)), ..episode("add", 1.0) };
    large.save(dir.path()).unwrap();
    let record = dir.path().join("episodes/add__1/episode_record.json");
    for number in 2..=EPISODES {
        let place = dir.path().join(format!("episodes/add__{number}"));
        fs::create_dir(&place).unwrap();
        fs::hard_link(&record, place.join("episode_record.json")).unwrap();
    }
    let lines = dir.path().join("lines.jsonl");
    let before = peak_memory();
    assert_eq!(Episodes::read(dir.path()).unwrap().to_jsonl(&lines).unwrap(), EPISODES);
    let grown = peak_memory() - before;
    assert!(grown < 8 << 10, "{grown} kB more for {} bytes", fs::metadata(&lines).unwrap().len());
    assert!(fs::metadata(&lines).unwrap().len() > 4_000 * EPISODES);
}

proptest! {
    #[test]
    fn any_record_is_read_back(
        texts in prop::collection::vec(any::<String>(), 4),
        reward in any::<f64>().prop_filter("JSON has only numbers", |reward| reward.is_finite()),
        seed in prop::option::of(any::<u64>()),
        counts: [u64; 3],
        feasible: Option<bool>,
        unknown in prop::collection::hash_map("x_[a-z]{1,8}", any::<String>(), 0..3),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let [task_id, error, source, tool] = <[String; 4]>::try_from(texts).unwrap();
        let record = EpisodeRecord {
            task_id,
            reward: Some(reward),
            seed: seed.map(Into::into),
            error_type: Some(error),
            tool_names: vec![tool],
            n_steps: counts[0],
            usage: UsageSummary { prompt_tokens: counts[1], total_tokens: counts[2], total_cost_usd: reward, ..UsageSummary::default() },
            verifier: Some(Verifier { source: Some(source), ..Verifier::default() }),
            findings: Some(Findings { feasible, ..Findings::default() }),
            unknown: unknown.into_iter().map(|(key, value)| (key, value.into())).collect(),
            ..episode("add", 1.0)
        };
        for dialect in [RecordDialect::Document, RecordDialect::CubeHarness] {
            let mut record = record.clone();
            if dialect == RecordDialect::CubeHarness {
                // It has other findings.
                record.findings = None;
            }
            record.save_as(dir.path(), dialect).unwrap();
            let read: Vec<EpisodeRecord> = Episodes::read(dir.path()).unwrap().collect::<Result<_, _>>().unwrap();
            prop_assert_eq!(read, std::slice::from_ref(&record), "{:?}", dialect);
        }
    }

    #[test]
    fn any_experiment_is_read_back(
        texts in prop::collection::vec(any::<String>(), 6),
        timestamp in 0.0..4e9_f64,
        temperature in any::<f64>().prop_filter("JSON has only numbers", |number| number.is_finite()),
        n_tasks: u64,
        is_dirty: Option<bool>,
        investigated_at in prop::option::of(any::<String>()),
        unknown in prop::collection::hash_map("x_[a-z]{1,8}", any::<String>(), 0..3),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let [name, model, version, filter, prompt, commit] = <[String; 6]>::try_from(texts).unwrap();
        let unknown: Map<String, Value> = unknown.into_iter().map(|(key, value)| (key, value.into())).collect();
        let Value::Object(config) = json!({ "model": model, "temperature": temperature }) else { unreachable!() };
        let investigator =
            InvestigatorLlmConfig { model, prompt_version: prompt, investigated_at, unknown: unknown.clone() };
        let record = ExperimentRecord {
            experiment_name: name.clone(),
            timestamp,
            framework_version: version,
            agent: AgentInfo {
                git_commit: Some(commit),
                git_is_dirty: is_dirty,
                unknown: unknown.clone(),
                ..AgentInfo::from_config(config, "chat", "0.1.0")
            },
            benchmark_subset: BenchmarkSubset {
                filter: Some(filter),
                unknown: unknown.clone(),
                ..BenchmarkSubset::new(&name, n_tasks)
            },
            investigator_llm_config: Some(investigator),
            unknown,
            ..experiment()
        };
        for dialect in [RecordDialect::Document, RecordDialect::CubeHarness] {
            let mut record = record.clone();
            if dialect == RecordDialect::CubeHarness {
                record.output_dir = None;
            }
            record.save_as(dir.path(), dialect).unwrap();
            prop_assert_eq!(&ExperimentRecord::load(dir.path()).unwrap(), &record, "{:?}", dialect);
        }
    }
}
