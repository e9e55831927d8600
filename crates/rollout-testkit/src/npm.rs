//! A package registry of npm on loopback, with packages of the test's own.

use std::{fs, path::Path, process::Command};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha512};
use tempfile::TempDir;

use crate::server::FileServer;

/// A registry that serves descriptions and tarballs of packages as the public one does.
pub struct NpmRegistry {
    root: TempDir,
    server: FileServer,
}

impl Default for NpmRegistry {
    fn default() -> Self {
        let root = TempDir::new().expect("make a temporary directory");
        let server = FileServer::new(root.path());
        Self { root, server }
    }
}

impl NpmRegistry {
    /// Where it answers.
    pub fn url(&self) -> String {
        self.server.url("")
    }

    /// Adds a version of a package, which is then the latest. Each file is a path, its mode and its content.
    pub fn publish(&self, package: &str, version: &str, files: &[(&str, u32, &str)]) {
        let staging = TempDir::new().expect("make a temporary directory");
        for (path, mode, content) in files {
            let path = staging.path().join("package").join(path);
            fs::create_dir_all(path.parent().expect("a file is in a directory")).expect("make a directory");
            fs::write(&path, content).expect("write a file of the package");
            use std::os::unix::fs::PermissionsExt as _;
            fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).expect("set the mode");
        }
        let name = package.rsplit('/').next().unwrap_or(package);
        let tarball = format!("tarballs/{package}/-/{name}-{version}.tgz");
        let file = self.root.path().join(&tarball);
        fs::create_dir_all(file.parent().expect("a file is in a directory")).expect("make a directory");
        let packed =
            Command::new("tar").arg("-czf").arg(&file).arg("-C").arg(staging.path()).arg("package").status();
        assert!(packed.expect("run tar").success());
        let integrity = BASE64_STANDARD.encode(Sha512::digest(fs::read(&file).expect("read the tarball")));
        let description = self.root.path().join(package);
        let mut known: Value = match fs::read(&description) {
            Ok(text) => serde_json::from_slice(&text).expect("a description is JSON"),
            Err(_) => json!({"name": package, "versions": {}}),
        };
        known["dist-tags"] = json!({"latest": version});
        known["versions"][version] = json!({
            "name": package,
            "version": version,
            "dist": {"tarball": self.server.url(&tarball), "integrity": format!("sha512-{integrity}")},
        });
        fs::create_dir_all(description.parent().expect("a file is in a directory"))
            .expect("make a directory");
        fs::write(description, known.to_string()).expect("write the description");
    }

    /// Changes the tarball of a version, so that it is not what the description says.
    pub fn tamper(&self, package: &str, version: &str) {
        let name = package.rsplit('/').next().unwrap_or(package);
        let file = self.root.path().join(format!("tarballs/{package}/-/{name}-{version}.tgz"));
        let mut bytes = fs::read(&file).expect("read the tarball");
        bytes.push(0);
        fs::write(file, bytes).expect("write the tarball");
    }

    /// Removes a package and its tarballs.
    pub fn remove(&self, package: &str) {
        let remove = |path: &Path| {
            let _ = fs::remove_file(path);
        };
        remove(&self.root.path().join(package));
        fs::remove_dir_all(self.root.path().join("tarballs").join(package)).expect("remove the tarballs");
    }
}
