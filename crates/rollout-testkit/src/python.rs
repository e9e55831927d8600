//! A Python interpreter with independent readers of files and references for numbers.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

/// The interpreter that `scripts/python-env` makes, with the packages of `scripts/requirements.txt`.
#[derive(Debug)]
pub struct Python {
    interpreter: PathBuf,
}

impl Python {
    /// Finds the interpreter; the first time the packages are installed.
    ///
    /// # Panics
    ///
    /// If the environment cannot be made, with the reason.
    #[expect(clippy::new_without_default, reason = "it runs a program")]
    pub fn new() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/python-env");
        let output = Command::new(&script)
            .stderr(Stdio::inherit())
            .output()
            .expect("a script of the repository starts");
        assert!(output.status.success(), "{} failed: {}", script.display(), output.status);
        let path = String::from_utf8(output.stdout).expect("the script prints a path");
        Self { interpreter: path.trim_end().into() }
    }

    /// Runs a program with this input, and returns what it prints.
    ///
    /// # Panics
    ///
    /// If the program fails.
    pub fn run(&self, program: &str, input: &str) -> String {
        let mut child = Command::new(&self.interpreter)
            .args(["-I", "-X", "utf8", "-c", program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the interpreter starts");
        let mut stdin = child.stdin.take().expect("it is piped");
        let output = thread::scope(|scope| {
            // Both sides would wait for one another if the program printed while it reads. A program that ends before
            // it has read everything tells so by its status.
            scope.spawn(move || stdin.write_all(input.as_bytes()));
            child.wait_with_output().expect("the output can be read")
        });
        assert!(output.status.success(), "the Python program failed: {}", output.status);
        String::from_utf8(output.stdout).expect("the program prints UTF-8")
    }
}
