//! The tools for documents and databases, on real files, through their public interface.

mod attacks;
mod bombs;
mod doc;
mod fixtures;
mod load;
mod rag;
mod settings;
mod sql;

use std::path::Path;
use std::time::Duration;

use rollout_tools::doc::{DocConfig, Docs};
use rollout_tools::rag::{Rag, RagConfig};
use rollout_tools::sql::{Sql, SqlConfig};
use rollout_tools::{Call, Helper, Params, Resource, Session, ToolError};
use serde_json::Value;
use tempfile::TempDir;

/// A folder that the tools may read.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::Builder::new().prefix("place").tempdir().unwrap() }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Adds a file.
    fn with(self, path: &str, bytes: impl AsRef<[u8]>) -> Self {
        let path = self.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
        self
    }

    fn docs(&self) -> Docs {
        let roots = vec![self.path().to_owned()];
        Docs::new(DocConfig { roots, ..DocConfig::default() }, helper())
    }

    fn sql(&self) -> Sql {
        let roots = vec![self.path().to_owned()];
        Sql::new(SqlConfig { roots, ..SqlConfig::default() }, helper())
    }

    fn rag(&self) -> Rag {
        let roots = vec![self.path().to_owned()];
        Rag::new(RagConfig { roots, ..RagConfig::default() }, helper())
    }
}

fn helper() -> Helper {
    Helper::new(env!("CARGO_BIN_EXE_rollout-tools-helper"))
}

/// Opens a session for some files.
async fn open(resource: &impl Resource, seed_path: impl Into<Value>) -> Box<dyn Session> {
    try_open(resource, seed_path).await.unwrap()
}

async fn try_open(
    resource: &impl Resource,
    seed_path: impl Into<Value>,
) -> Result<Box<dyn Session>, ToolError> {
    resource.open(&Params::from_iter([("seed_path".to_owned(), seed_path.into())])).await
}

async fn call(session: &dyn Session, tool: &str, params: Value) -> Result<Value, ToolError> {
    let Value::Object(params) = params else { panic!("parameters are an object") };
    let about = Call {
        worker_id: "worker".to_owned(),
        session_id: "session".to_owned(),
        timeout: Duration::from_secs(60),
    };
    session.call(tool, params, &about).await
}

/// The text of a call's result, as shown to the model.
async fn shown(session: &dyn Session, tool: &str, params: Value) -> String {
    match call(session, tool, params).await {
        Ok(data) => data["result"].as_str().unwrap().to_owned(),
        Err(error) => format!("{} {}", error.code as u32, error.message),
    }
}
