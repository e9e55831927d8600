//! `sql`: lists databases, describes their tables, and runs queries. Nothing is ever written.

mod databases;
mod open;
pub(crate) mod query;
mod schema;
mod session;

use std::path::PathBuf;

use async_trait::async_trait;
use rollout_settings::Settings as _;
use serde_json::json;

use crate::forms::{roots, whole_seconds};
use crate::helper::Helper;
use crate::resource::{Params, PlannedUse, Resource, Session, ToolError, ToolSpec};
use crate::seed::Seeds;

rollout_settings::settings! {
    /// The settings of the `sql` tools.
    #[derive(Debug, Clone, PartialEq)]
    pub struct SqlConfig {
        /// The folders that may contain databases.
        pub roots: Vec<PathBuf> = roots(),
        /// The time limit of a query, in seconds.
        pub timeout_seconds: u64 = whole_seconds(30),
    }
}

impl Default for SqlConfig {
    fn default() -> Self {
        Self::defaults().expect("every setting of databases has a default")
    }
}

/// The `sql` tools: read-only access to SQLite databases.
#[derive(Debug)]
pub struct Sql {
    config: SqlConfig,
    helper: Helper,
}

impl Sql {
    /// Creates the tools for the databases below the roots, which the helper reads.
    pub fn new(config: SqlConfig, helper: Helper) -> Self {
        Self { config, helper }
    }
}

#[async_trait]
impl Resource for Sql {
    fn name(&self) -> &str {
        "sql"
    }

    fn tools(&self) -> Vec<ToolSpec> {
        let database = json!({"type": "string", "description": "A name from list_databases; optional if there is only one."});
        vec![
            ToolSpec {
                name: "list_databases".to_owned(),
                aliases: vec!["list".to_owned()],
                description: "Lists the databases that can be queried.".to_owned(),
                parameters: json!({"type": "object", "properties": {}}),
            },
            ToolSpec {
                name: "get_schema".to_owned(),
                aliases: vec!["schema".to_owned()],
                description:
                    "Shows the tables of a database: columns, types, keys, row counts and a few rows of each."
                        .to_owned(),
                parameters: json!({"type": "object", "properties": {"database": database}}),
            },
            ToolSpec {
                name: "execute".to_owned(),
                aliases: vec!["query".to_owned()],
                description:
                    "Runs one SELECT statement, in the dialect of SQLite, on a database that cannot be changed."
                        .to_owned(),
                parameters: json!({
                    "type": "object",
                    "properties": {
                        "database": database,
                        "sql": {"type": "string", "description": "The statement."},
                        "max_rows": {"type": "integer", "description": "The maximum number of rows.", "default": session::ROWS},
                    },
                    "required": ["sql"],
                }),
            },
        ]
    }

    async fn warm_up(&self) -> Result<(), ToolError> {
        Seeds::open(&self.config.roots, &Params::new()).await.map(drop)
    }

    async fn check(&self, planned: &PlannedUse) -> Result<Vec<String>, ToolError> {
        Seeds::check(&self.config.roots, planned).await
    }

    async fn open(&self, config: &Params) -> Result<Box<dyn Session>, ToolError> {
        let seeds = Seeds::open(&self.config.roots, config).await?;
        Ok(Box::new(session::SqlSession {
            seeds,
            helper: self.helper.clone(),
            seconds: self.config.timeout_seconds,
        }))
    }
}
