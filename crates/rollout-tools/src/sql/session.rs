//! Calls of the `sql` tools.

use async_trait::async_trait;
use serde_json::{Value, json};

use super::databases::{choose, is_database, names};
use super::query::{Question, Table};
use super::schema::Schema;
use crate::arguments;
use crate::helper::Bounds;
use crate::helper::Helper;
use crate::resource::{Call, ErrorCode, Params, Session, ToolError};
use crate::seed::{self, SeedFile, Seeds};

/// The default number of rows of a result.
pub(super) const ROWS: usize = 100;
/// The most rows that can be requested.
const MOST_ROWS: usize = 1000;
/// The longest statement; the request is passed to the helper as an argument, whose length is limited.
const LONGEST_SQL: usize = 64 << 10;
/// The memory limit of a query. SQLite sorts in memory here.
const MEMORY: u64 = 1 << 30;
/// The most bytes of an answer. Its content is shortened before, see [`super::query`].
const OUTPUT: u64 = 4 << 20;

pub(super) struct SqlSession {
    pub(super) seeds: Seeds,
    pub(super) helper: Helper,
    pub(super) seconds: u64,
}

#[async_trait]
impl Session for SqlSession {
    async fn call(&self, tool: &str, params: Params, _call: &Call) -> Result<Value, ToolError> {
        let files = self.seeds.files(&params, is_database).await?;
        let database = arguments::text(&params, "database")?;
        match tool {
            "list_databases" => Ok(list(&files)),
            "get_schema" => {
                let schema: Schema = self.ask(choose(&files, database)?, Question::Schema).await?;
                Ok(json!({"result": schema.to_string(), "tables": schema.tables}))
            }
            "execute" => {
                let sql = arguments::required_text(&params, "sql")?;
                if sql.len() > LONGEST_SQL {
                    let message = format!("the statement is longer than {} KiB", LONGEST_SQL >> 10);
                    return Err(ToolError::new(ErrorCode::InvalidInput, message));
                }
                let max_rows = arguments::count(&params, "max_rows", ROWS, MOST_ROWS)?;
                let question = Question::Execute { sql: sql.to_owned(), max_rows };
                let table: Table = self.ask(choose(&files, database)?, question).await?;
                Ok(json!({
                    "result": table.to_string(),
                    "columns": table.columns,
                    "row_count": table.rows.len(),
                    "rows": table.rows,
                    "truncated": table.cut.is_some(),
                }))
            }
            _ => Err(ToolError::new(ErrorCode::InvalidRequest, format!("unknown tool `sql:{tool}`"))),
        }
    }
}

impl SqlSession {
    async fn ask<T: serde::de::DeserializeOwned + Send + 'static>(
        &self,
        database: &SeedFile,
        question: Question,
    ) -> Result<T, ToolError> {
        let file = database.clone();
        let (input, _) = seed::blocking(move || file.open()).await?;
        let bounds = Bounds { memory: MEMORY, seconds: self.seconds, output: OUTPUT };
        Ok(self.helper.run(question, input, bounds).await?)
    }
}

fn list(files: &[SeedFile]) -> Value {
    let names = names(files);
    let databases: Vec<_> = names
        .iter()
        .zip(files)
        .map(|(name, file)| json!({"name": name, "path": file.path, "bytes": file.stamp.size}))
        .collect();
    let result = if names.is_empty() { "There are no databases.".to_owned() } else { names.join("\n") };
    json!({"result": result, "databases": databases})
}
