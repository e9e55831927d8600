//! Builds the program that runs as the first process of containers, which is embedded in the library.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Variables of the outer build that would change the inner build.
const FOREIGN: [&str; 6] = [
    "RUSTFLAGS",
    "RUSTDOCFLAGS",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CLIPPY_ARGS",
    "CLIPPY_CONF_DIR",
];

/// Variables of cargo with paths, which do not affect the build.
const KEPT: [&str; 5] = ["CARGO_HOME", "CARGO_MAKEFLAGS", "CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTRIES_"];

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_DOCKER").is_none() {
        return Ok(());
    }
    let guest = guest_sources()?;
    println!("cargo::rerun-if-changed={}", guest.join("src").display());
    println!("cargo::rerun-if-changed={}", guest.join("Cargo.toml").display());
    for lock in [guest.join("Cargo.lock"), guest.join("../../Cargo.lock")] {
        if lock.is_file() {
            println!("cargo::rerun-if-changed={}", lock.display());
        }
    }
    let guest = guest.canonicalize()?;
    let program = build(&guest, &PathBuf::from(variable("OUT_DIR")?))?;
    println!("cargo::rustc-env=ROLLOUT_GUEST={}", program.display());
    Ok(())
}

/// The directory of rollout-guest: beside this crate in a checkout, in cargo's registry otherwise.
///
/// Cargo runs build scripts in their crate's directory. The path in a checkout is relative, because two checkouts may
/// share their build output, and the path that the build script of rollout-guest reports is then that of the other one.
fn guest_sources() -> Result<PathBuf, String> {
    let beside = PathBuf::from("../rollout-guest");
    match beside.join("Cargo.toml").is_file() {
        true => Ok(beside),
        false => Ok(PathBuf::from(variable("DEP_ROLLOUT_GUEST_DIR")?)),
    }
}

fn build(guest: &Path, out_dir: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let target = target()?;
    let target_dir = out_dir.join("guest");
    let mut cargo = Command::new(variable("CARGO")?);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let cargos = text.starts_with("CARGO_") && !KEPT.iter().any(|kept| text.starts_with(kept));
        if cargos || FOREIGN.contains(&text.as_ref()) {
            cargo.env_remove(&name);
        }
    }
    cargo.arg("build").args(["--package", "rollout-guest", "--bin", "rollout-guest"]);
    cargo.args(["--release", "--locked", "--target", &target]);
    cargo.arg("--manifest-path").arg(guest.join("Cargo.toml"));
    cargo.arg("--target-dir").arg(&target_dir);
    for setting in ["opt-level='z'", "lto=true", "panic='abort'", "strip='symbols'", "codegen-units=1"] {
        cargo.arg("--config").arg(format!("profile.release.{setting}"));
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static");
    let output = cargo.output().map_err(|error| format!("cargo cannot be run: {error}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the guest for {target} cannot be built:\n{errors}").into());
    }
    let built = target_dir.join(&target).join("release/rollout-guest");
    // The path that the library includes does not contain the name of the target.
    let program = out_dir.join("rollout-guest");
    fs::copy(&built, &program).map_err(|error| format!("{}: {error}", built.display()))?;
    Ok(program)
}

/// Containers run Linux on the architecture that this library is built for. The C library of musl gives the
/// smaller program; if it is not installed, the host's own is linked statically.
fn target() -> Result<String, Box<dyn Error>> {
    let arch = variable("CARGO_CFG_TARGET_ARCH")?;
    let musl = format!("{arch}-unknown-linux-musl");
    let outer = variable("TARGET")?;
    if !outer.contains("-linux-") || has_target(&musl) {
        return Ok(musl);
    }
    Ok(outer)
}

fn has_target(target: &str) -> bool {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "target-libdir", "--target", target]).output();
    output.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|error| format!("{name}: {error}"))
}
