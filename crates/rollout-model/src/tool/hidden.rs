//! Arguments of tools that are hidden from the model and filled in by the rollout.

use std::sync::Arc;

use async_trait::async_trait;

use crate::State;
use crate::tool::{Arguments, Tool, ToolFailure, schema};
use rollout_core::message::{Content, ToolDef};

/// A tool does not have an argument that is to be hidden.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the tool `{tool}` has no argument `{argument}` to hide")]
pub struct UnknownArgument {
    /// The tool.
    pub tool: String,
    /// The missing argument.
    pub argument: String,
}

/// The same tool, with some of its arguments hidden from the model. `fill` sets them for each call; it gets the other
/// arguments and the state of the rollout. If the model sets a hidden argument, it is dropped.
///
/// ```
/// use rollout::model::tool;
/// use schemars::JsonSchema;
/// use serde::Deserialize;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Query {
///     session: String,
///     sql: String,
/// }
///
/// let query = tool::function("query", "Queries the database.", async |query: Query| {
///     format!("{} in {}", query.sql, query.session)
/// });
/// let query = tool::hide(query, &["session"], |arguments, state| {
///     arguments.insert("session".into(), state.trajectory_id.as_ref().into());
///     Ok(())
/// })?;
/// assert!(query.def().parameters["properties"].get("session").is_none());
/// # Ok::<(), tool::UnknownArgument>(())
/// ```
pub fn hide(
    tool: Arc<dyn Tool>,
    names: &[&str],
    fill: impl Fn(&mut Arguments, &State) -> Result<(), ToolFailure> + Send + Sync + 'static,
) -> Result<Arc<dyn Tool>, UnknownArgument> {
    let mut def = tool.def().clone();
    for name in names {
        if !schema::remove_property(&mut def.parameters, name) {
            return Err(UnknownArgument { tool: def.name, argument: (*name).to_owned() });
        }
    }
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    Ok(Arc::new(Hidden { def, tool, names, fill: Box::new(fill) }))
}

type Fill = dyn Fn(&mut Arguments, &State) -> Result<(), ToolFailure> + Send + Sync;

struct Hidden {
    def: ToolDef,
    tool: Arc<dyn Tool>,
    names: Vec<String>,
    fill: Box<Fill>,
}

#[async_trait]
impl Tool for Hidden {
    fn def(&self) -> &ToolDef {
        &self.def
    }

    async fn call(&self, mut arguments: Arguments, state: &mut State) -> Result<Content, ToolFailure> {
        for name in &self.names {
            arguments.remove(name);
        }
        (self.fill)(&mut arguments, state)?;
        self.tool.call(arguments, state).await
    }
}
