//! What `scripts/release` makes is installed and used on a machine without a toolchain.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use rollout_testkit::TestEngine;

/// The commands of a new user who has Python and nothing else.
const FIRST_RUN: &str = "set -e
pip install --quiet --no-index --root-user-action ignore --break-system-packages /dist/rollout-*.whl
pip show --files rollout | grep --quiet licenses/THIRD_PARTY_LICENSES.txt
rollout --version
cd /tmp
rollout init job demo
rollout demo/job.yaml --output json > events || { tail -n 1 events >&2; exit 1; }
tail -n 1 events
tar -xzf /dist/rollout-*-linux.tar.gz
rollout-*-linux/rollout --version
";

/// The text of a file in an archive.
fn file_in(archive: &Path, name: &str) -> String {
    let extracted = Command::new("tar").arg("-xOzf").arg(archive).arg(name).output().unwrap();
    assert!(extracted.status.success(), "{}", String::from_utf8_lossy(&extracted.stderr));
    String::from_utf8(extracted.stdout).unwrap()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_wheel_and_the_archive_run_in_a_container_with_python_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("rollout");
    // The tables of lines make the program of a test five times as large.
    let stripped = Command::new("strip").arg("-o").arg(&program).arg(env!("CARGO_BIN_EXE_rollout")).status();
    assert!(stripped.unwrap().success());
    let dist = dir.path().join("dist");
    let packed = Command::new(repository().join("scripts/release"))
        .arg("--program")
        .args([&program, &dist])
        .output()
        .unwrap();
    assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));

    let name = format!("rollout-{}-{}-linux", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let archive = dist.join(format!("{name}.tar.gz"));
    let licences = file_in(&archive, &format!("{name}/THIRD_PARTY_LICENSES.txt"));
    for package in ["pdf-extract", "reqwest", "ring", "rustix", "serde_json"] {
        assert!(
            licences.lines().any(|line| line.starts_with(&format!("{package} "))),
            "{package} is missing"
        );
    }
    assert!(licences.contains("The Rust Standard Library"));
    let readme = file_in(&archive, &format!("{name}/README.md"));
    for part in ["](docs/", "](CHANGELOG.md)"] {
        assert!(!readme.contains(part), "{part} leads nowhere in {readme}");
    }
    assert!(
        readme.contains("rollout-rs/rollout/raw/v") && readme.contains("rollout-rs/rollout/blob/v"),
        "{readme}"
    );

    let engine = TestEngine::shared();
    let image = "rollout-release-test:latest";
    engine.docker(&["import", &std::env::var("ROLLOUT_TEST_PYTHON").unwrap(), image]);
    let mount = format!("{}:/dist:ro", dist.display());
    // The native environment needs namespaces, and a place for overlays that is not an overlay itself.
    let state = format!("{}:/root/.cache/rollout", dir.path().join("state").display());
    let rights = ["--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined", "--volume", &state];
    let arguments = ["run", "--rm", "--network", "none", "--volume", &mount];
    let printed = engine.docker(&[&arguments[..], &rights, &[image, "bash", "-c", FIRST_RUN]].concat());

    let version = concat!("rollout ", env!("CARGO_PKG_VERSION"));
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!((lines.first(), lines.last()), (Some(&version), Some(&version)), "{printed}");
    let end: serde_json::Value = serde_json::from_str(lines[lines.len() - 2]).expect(&printed);
    assert_eq!(end["result"]["totals"]["completed_trials"], 3, "{printed}");
    let sums = fs::read_to_string(dist.join("SHA256SUMS")).unwrap();
    assert_eq!(sums.lines().count(), 2, "{sums}");
}

#[test]
fn a_program_that_is_not_linked_against_glibc_is_not_packed() {
    let dir = tempfile::tempdir().unwrap();
    // This program is linked statically on all distributions with glibc.
    let packed = Command::new(repository().join("scripts/release"))
        .args(["--program", "/sbin/ldconfig"])
        .arg(dir.path().join("dist"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&packed.stderr);
    assert!(!packed.status.success());
    assert!(stderr.contains("/sbin/ldconfig is not linked against glibc"), "{stderr}");
}
