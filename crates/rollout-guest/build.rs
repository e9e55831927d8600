//! Reports the directory of these sources to the crates that depend on this one.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let dir = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR for build scripts");
    println!("cargo::metadata=dir={dir}");
}
