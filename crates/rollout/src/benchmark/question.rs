//! How a model is led through one question: it calls tools of the tool server until it answers.

use std::{sync::Arc, time::Instant};

use async_trait::async_trait;
use serde_json::{Map, Value};

use super::{
    ToolCallRecord, text,
    tools::{Answer, Session, Toolbox},
};
use crate::model::{
    Cleanup, Error, ErrorKind, Interaction, Message, Messages, Role, RolloutInput, State, Stop, ToolCall,
    ToolDef,
    metric::{PREDICTED_ANSWER, extract_final_answer},
};

/// What stands for the answer of a model that only ever called tools.
const NO_ANSWER: &str = "Max turns reached without answer";

const ID: &str = "id";
const KWARGS: &str = "kwargs";

/// What the model is told before a question, unless somebody has better words.
const SYSTEM_PROMPT: &str = "\
You answer questions. Use the tools that you have, step by step, whenever they help you to find out or to check \
something; look at what a tool gives before you decide what to do next. When you are sure, answer in plain words and \
put the answer itself last, as \"Final answer: …\", as briefly as the question allows.";

/// What the model is told before every question.
pub(crate) fn system_message(configured: &str) -> Arc<Message> {
    Arc::new(Message::system(if configured.is_empty() { SYSTEM_PROMPT } else { configured }))
}

/// The name of the question that a rollout starts from.
pub(crate) fn id(input: &RolloutInput) -> &str {
    input.info.as_ref().and_then(|info| info.get(ID)?.as_str()).unwrap_or_default()
}

/// The calls of tools in a rollout so far.
#[derive(Debug, Default)]
pub(crate) struct Calls(pub(crate) Vec<Arc<ToolCallRecord>>);

/// Leads a model through questions.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    /// None if nothing needs the tool server.
    pub(crate) toolbox: Option<Arc<Toolbox>>,
    pub(crate) max_turns: u32,
    /// Stands before the id of a rollout in that of its worker.
    pub(crate) worker_id: Option<String>,
}

impl Question {
    fn worker(&self, state: &State) -> String {
        match &self.worker_id {
            Some(worker) => format!("{worker}-{}", state.trajectory_id),
            None => state.trajectory_id.to_string(),
        }
    }

    /// Does what a call asks for, and puts it on record. Returns what the model is told.
    async fn call(&self, call: &ToolCall, state: &mut State) -> Result<String, Error> {
        // A model that garbles its arguments learns so from the tool.
        let parameters: Map<String, Value> = serde_json::from_str(&call.arguments).unwrap_or_default();
        let clock = Instant::now();
        let (tool_name, answer) =
            match self.toolbox.as_deref().map(|toolbox| (toolbox, toolbox.find(&call.name))) {
                Some((toolbox, Some(name))) => {
                    let kwargs = state.input.info.as_ref().and_then(|info| info.get(KWARGS)?.as_object());
                    let mut all = parameters.clone();
                    all.extend(kwargs.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
                    let answer = toolbox.server.execute(&self.worker(state), name, all).await;
                    (
                        name,
                        answer.map_err(|error| {
                            error.into_error(&format!("the tool `{name}` could not be called"))
                        })?,
                    )
                }
                missing => {
                    let known = missing.map(|(toolbox, _)| toolbox.names()).unwrap_or_default();
                    let message = format!("no tool is called '{}'; there are: {known}", call.name);
                    (call.name.as_str(), Answer { code: -1, message, data: Value::Null })
                }
            };
        let told = text::told(&answer);
        let record = ToolCallRecord {
            tool_name: tool_name.to_owned(),
            parameters,
            success: answer.code == 0,
            error: (answer.code != 0).then_some(answer.message),
            result: answer.data,
            execution_time_ms: clock.elapsed().as_millis() as u64,
        };
        if state.resources.get::<Calls>().is_none() {
            state.resources.insert(Calls::default());
        }
        if let Some(Calls(calls)) = state.resources.get_mut() {
            calls.push(Arc::new(record));
        }
        Ok(told)
    }
}

#[async_trait]
impl Interaction for Question {
    fn tool_defs(&self) -> Vec<ToolDef> {
        self.toolbox.as_ref().map(|toolbox| toolbox.defs()).unwrap_or_default()
    }

    fn max_turns(&self) -> Option<u32> {
        Some(self.max_turns)
    }

    fn stops(&self) -> Vec<Stop> {
        vec![Stop::new("no_tools_called", |state| {
            last_words(state).is_some_and(|last| last.tool_calls.is_empty())
        })]
    }

    fn cleanups(&self) -> Vec<Cleanup> {
        vec![Cleanup::new("disconnect", |state| {
            Box::pin(async move {
                if let Some(session) = state.resources.remove::<Session>() {
                    session.close().await;
                }
                Ok(())
            })
        })]
    }

    async fn setup_state(&self, state: &mut State) -> Result<(), Error> {
        if let Some(toolbox) = &self.toolbox {
            let (session, opened) = Session::open(toolbox, self.worker(state)).await;
            // Even if one of several could not be opened, the others have to be closed.
            state.resources.insert(session);
            opened?;
        }
        Ok(())
    }

    async fn env_response(&self, messages: &[Arc<Message>], state: &mut State) -> Result<Messages, Error> {
        let Some(last) = messages.last() else { return Ok(Messages::new()) };
        let mut answers = Messages::with_capacity(last.tool_calls.len());
        for call in &last.tool_calls {
            let told = self.call(call, state).await?;
            answers.push(Arc::new(Message::tool(&call.id, told)));
        }
        Ok(answers)
    }

    async fn render_completion(&self, state: &mut State) -> Result<(), Error> {
        let completion = state.conversation_after_prompt();
        match predicted_answer(&completion) {
            Some(answer) => state.set(PREDICTED_ANSWER, answer),
            None if state.prompt_too_long => {
                let text = "the question is longer than the model reads";
                state.error.get_or_insert_with(|| Error::new(ErrorKind::Model, text));
            }
            None => state.set(PREDICTED_ANSWER, NO_ANSWER),
        }
        state.completion = Some(completion);
        Ok(())
    }
}

/// What the model said last.
fn last_words(state: &State) -> Option<&Arc<Message>> {
    state.trajectory.last()?.completion.last()
}

/// The answer in a conversation: in its last message, or in the last one with words if that only calls tools.
fn predicted_answer(completion: &[Arc<Message>]) -> Option<String> {
    let mut spoken = completion.iter().rev().filter(|message| message.role == Role::Assistant).peekable();
    if let Some(last) = spoken.peek()
        && last.tool_calls.is_empty()
    {
        return Some(extract_final_answer(&last.text()));
    }
    let words = spoken.find(|message| !message.text().trim().is_empty())?;
    Some(extract_final_answer(&words.text()))
}
