//! A Python interpreter with independent implementations, to check files and numbers against.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use serde_json::Value;

/// The interpreter that `scripts/python-env` creates, with the packages of `scripts/requirements.txt`.
#[derive(Debug)]
pub struct Python {
    interpreter: PathBuf,
}

impl Python {
    /// Finds the interpreter; the first time, the packages are installed.
    ///
    /// # Panics
    ///
    /// If the environment cannot be created, with the reason.
    #[expect(clippy::new_without_default, reason = "it runs a program")]
    pub fn new() -> Self {
        Self::with_packages("requirements.txt")
    }

    /// The same with the packages of another file in `scripts`.
    ///
    /// # Panics
    ///
    /// If the environment cannot be created, with the reason.
    pub fn with_packages(file: &str) -> Self {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
        let script = scripts.join("python-env");
        let output = Command::new(&script)
            .arg(scripts.join(file))
            .stderr(Stdio::inherit())
            .output()
            .expect("a script of the repository starts");
        assert!(output.status.success(), "{} failed: {}", script.display(), output.status);
        let path = String::from_utf8(output.stdout).expect("the script prints a path");
        Self { interpreter: path.trim_end().into() }
    }

    /// The directory of the interpreter and of the programs that came with the packages.
    pub fn programs(&self) -> &Path {
        self.interpreter.parent().expect("a program is in a directory")
    }

    /// Sends requests to the verifiers library, and returns its answers. The requests are defined in
    /// `verifiers.py`.
    ///
    /// # Panics
    ///
    /// If the library fails.
    pub fn verifiers(&self, requests: &[Value]) -> Vec<Value> {
        let input: String = requests.iter().map(|request| format!("{request}\n")).collect();
        let output = self.run(include_str!("verifiers.py"), &input);
        let answers: Vec<Value> =
            output.lines().map(|line| serde_json::from_str(line).expect("an answer is JSON")).collect();
        assert_eq!(answers.len(), requests.len(), "every request has an answer");
        answers
    }

    /// Runs a program with this input, and returns its output.
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
            // Written in a thread: otherwise both sides would block if the program prints while it reads. A
            // program that exits before it has read everything reports that by its status.
            scope.spawn(move || stdin.write_all(input.as_bytes()));
            child.wait_with_output().expect("the output can be read")
        });
        assert!(output.status.success(), "the Python program failed: {}", output.status);
        String::from_utf8(output.stdout).expect("the program prints UTF-8")
    }
}
