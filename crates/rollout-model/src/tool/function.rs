//! Tools made from functions with typed arguments.

use std::{marker::PhantomData, sync::Arc};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::tool::{Arguments, Tool, ToolFailure, ToolOutput, schema};
use crate::{AsyncHook, State};
use rollout_core::message::{Content, ToolDef};

/// A tool that calls a function.
///
/// The function takes one struct, whose fields are the arguments. The model gets the schema of the struct, with the doc
/// comments of its fields as descriptions.
///
/// ```
/// use rollout::model::{ToolUse, tool};
/// use schemars::JsonSchema;
/// use serde::Deserialize;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Sum {
///     /// The first number.
///     a: i64,
///     b: i64,
/// }
///
/// let add = tool::function("add", "Adds two numbers.", async |sum: Sum| sum.a + sum.b);
/// assert_eq!(add.def().parameters["properties"]["a"]["description"], "The first number.");
/// let interaction = ToolUse::new([add])?;
/// # Ok::<(), rollout::model::DuplicateTool>(())
/// ```
pub fn function<A, F, R>(name: impl Into<String>, description: impl Into<String>, call: F) -> Arc<dyn Tool>
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    F: AsyncFn(A) -> R + AsyncHook<'static, (A,), R>,
    R: ToolOutput + 'static,
{
    tool(name, description, move |arguments, _| {
        let called = call.run((arguments,));
        Box::pin(async move { Ok(called.await) })
    })
}

/// A tool that calls a function which can read and change the state of the rollout.
///
/// ```
/// use rollout::model::tool;
/// use schemars::JsonSchema;
/// use serde::Deserialize;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Note {
///     text: String,
/// }
///
/// let note = tool::stateful("note", "Writes a note down.", async |note: Note, state| {
///     state.set("note", note.text)?;
///     Ok("noted")
/// });
/// assert_eq!(note.def().name, "note");
/// ```
pub fn stateful<A, F, R>(name: impl Into<String>, description: impl Into<String>, call: F) -> Arc<dyn Tool>
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    F: AsyncFn(A, &mut State) -> Result<R, ToolFailure>
        + for<'a> AsyncHook<'a, (A, &'a mut State), Result<R, ToolFailure>>,
    R: ToolOutput + 'static,
{
    tool(name, description, move |arguments, state| call.run((arguments, state)))
}

fn tool<A, R>(
    name: impl Into<String>,
    description: impl Into<String>,
    call: impl for<'a> Fn(A, &'a mut State) -> BoxFuture<'a, Result<R, ToolFailure>> + Send + Sync + 'static,
) -> Arc<dyn Tool>
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    R: ToolOutput + 'static,
{
    let def = ToolDef {
        name: name.into(),
        description: description.into(),
        parameters: schema::of::<A>(),
        strict: None,
    };
    Arc::new(Function { def, call, takes: PhantomData })
}

struct Function<A, R, C> {
    def: ToolDef,
    call: C,
    takes: PhantomData<fn(A) -> R>,
}

#[async_trait]
impl<A, R, C> Tool for Function<A, R, C>
where
    A: DeserializeOwned + Send + 'static,
    R: ToolOutput + 'static,
    C: for<'a> Fn(A, &'a mut State) -> BoxFuture<'a, Result<R, ToolFailure>> + Send + Sync,
{
    fn def(&self) -> &ToolDef {
        &self.def
    }

    async fn call(&self, arguments: Arguments, state: &mut State) -> Result<Content, ToolFailure> {
        let arguments = from_arguments(arguments)?;
        (self.call)(arguments, state).await?.into_content()
    }
}

/// Deserializes the arguments of a call.
pub(super) fn from_arguments<A: DeserializeOwned>(arguments: Arguments) -> Result<A, ToolFailure> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| ToolFailure::new("TypeError", format!("invalid arguments: {error}")))
}
