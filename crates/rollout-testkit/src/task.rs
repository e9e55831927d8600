//! Task directories made for one test.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

/// A task to be written to disk. By default it is solved by creating `/app/done`.
#[derive(Debug, Clone)]
pub struct TestTask {
    pub(crate) name: String,
    files: Vec<(String, String)>,
    removed: Vec<String>,
    executable: bool,
}

impl TestTask {
    /// A complete task with this name.
    pub fn new(name: &str) -> Self {
        let task = Self { name: name.to_owned(), files: Vec::new(), removed: Vec::new(), executable: true };
        task.file("instruction.md", "Create the file /app/done.\n")
            .file("task.toml", "version = \"1.0\"\n")
            .file("environment/Dockerfile", "FROM test\nWORKDIR /app\n")
            .file("solution/solve.sh", "touch /app/done\n")
            .tests("if [ -e /app/done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n")
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Replaces or adds a file of the task.
    pub fn file(mut self, path: &str, content: &str) -> Self {
        self.files.push((path.to_owned(), content.to_owned()));
        self
    }

    /// Removes a file.
    pub fn without(mut self, path: &str) -> Self {
        self.removed.push(path.to_owned());
        self
    }

    /// Writes scripts without the permission to execute them.
    pub fn without_execute_bits(mut self) -> Self {
        self.executable = false;
        self
    }

    /// Replaces tests/test.sh.
    pub fn tests(self, script: &str) -> Self {
        self.file("tests/test.sh", script)
    }

    /// Replaces solution/solve.sh.
    pub fn solution(self, script: &str) -> Self {
        self.file("solution/solve.sh", script)
    }

    /// Replaces task.toml.
    pub fn config(self, toml: &str) -> Self {
        self.file("task.toml", toml)
    }

    /// Replaces environment/Dockerfile.
    pub fn dockerfile(self, text: &str) -> Self {
        self.file("environment/Dockerfile", text)
    }

    /// Replaces the image in `FROM test` of the Dockerfile.
    pub(crate) fn base(mut self, image: &str) -> Self {
        for (path, content) in &mut self.files {
            if path == "environment/Dockerfile" {
                *content = content.replace("FROM test\n", &format!("FROM {image}\n"));
            }
        }
        self
    }

    /// Writes the task below a dataset's directory.
    pub fn write(&self, dataset: &Path) {
        let dir = dataset.join(&self.name);
        for (path, content) in &self.files {
            if self.removed.contains(path) {
                continue;
            }
            let path = dir.join(path);
            fs::create_dir_all(path.parent().expect("a file of a task has a parent"))
                .expect("make a task directory");
            fs::write(&path, content).expect("write a task file");
            if self.executable && path.extension().is_some_and(|extension| extension == "sh") {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
                    .expect("make a script executable");
            }
        }
    }
}
