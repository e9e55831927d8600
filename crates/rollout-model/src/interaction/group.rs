//! Several interactions for one dataset.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use indexmap::IndexMap;

use super::Interaction;
use crate::{Error, ErrorKind, RolloutInput, State};

/// Interactions by the `task` of their examples.
///
/// ```
/// use std::sync::Arc;
///
/// use rollout::model::{Interaction, InteractionGroup, RolloutInput, SingleTurn};
///
/// let group = InteractionGroup::new([("math", Arc::new(SingleTurn) as Arc<dyn Interaction>)]);
/// let input = RolloutInput { task: "math".into(), ..RolloutInput::default() };
/// assert_eq!(group.route(&input).and_then(Interaction::max_turns), Some(1));
/// ```
#[derive(Clone, Default)]
pub struct InteractionGroup(IndexMap<String, Arc<dyn Interaction>>);

impl InteractionGroup {
    /// A group of these. The last of several for the same task is used.
    pub fn new<T: Into<String>>(members: impl IntoIterator<Item = (T, Arc<dyn Interaction>)>) -> Self {
        Self(members.into_iter().map(|(task, interaction)| (task.into(), interaction)).collect())
    }
}

impl fmt::Debug for InteractionGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[async_trait]
impl Interaction for InteractionGroup {
    fn route(&self, input: &RolloutInput) -> Option<&dyn Interaction> {
        self.0.get(&input.task).map(|member| &**member)
    }

    /// Called only for an example that belongs to no member.
    async fn setup_state(&self, state: &mut State) -> Result<(), Error> {
        let known: Vec<&str> = self.0.keys().map(String::as_str).collect();
        let task = &state.input.task;
        let text = format!("no interaction for the task `{task}`; known tasks: {}", known.join(", "));
        Err(Error::new(ErrorKind::Any, text))
    }
}
