//! The conversation about one question: the model calls tools of the tool server until it answers.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use super::{
    record, text,
    tools::{Answer, Session, Toolbox},
};
use rollout_core::row::ToolCallRecord;
use rollout_core::{
    message::{Content, Message, MessageList, Messages, Role, ToolCall, ToolDef},
    response::Response,
};
use rollout_model::output::RecordedCalls;
use rollout_model::{
    Cleanup, Error, ErrorKind, Interaction, State, Stop,
    metric::{PREDICTED_ANSWER, extract_final_answer},
    next_prompt,
};

/// The recorded answer of a model that only called tools.
const NO_ANSWER: &str = "Max turns reached without answer";

/// The maximum number of calls that are executed in one turn. A model that reads its results needs fewer.
const MAX_CALLS: usize = 128;

const KWARGS: &str = "kwargs";

/// The default system prompt.
pub const DEFAULT_SYSTEM_PROMPT: &str = "\
You answer questions. Use the tools that you have, step by step, whenever they help you to find out or to check \
something; look at what a tool gives before you decide what to do next. When you are sure, answer in plain words and \
put the answer itself last, as \"Final answer: …\", as briefly as the question allows.";

/// The system message of every question.
pub(crate) fn system_message(configured: &str) -> Arc<Message> {
    Arc::new(Message::system(if configured.is_empty() { DEFAULT_SYSTEM_PROMPT } else { configured }))
}

/// The interaction for questions of a benchmark.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    /// Empty if the tool server is not needed, and until it is ready.
    pub(crate) toolbox: Arc<OnceLock<Arc<Toolbox>>>,
    pub(crate) max_turns: u32,
    /// The first part of the worker id; the id of the rollout follows it.
    pub(crate) worker_id: Option<String>,
}

impl Question {
    fn worker(&self, state: &State) -> String {
        match &self.worker_id {
            Some(worker) => format!("{worker}-{}", state.trajectory_id),
            None => state.trajectory_id.to_string(),
        }
    }

    /// Executes a call, and records it. Returns the text for the model, and the picture to show to it, if there is one.
    async fn call(&self, call: &ToolCall, state: &mut State) -> Result<(String, Option<Value>), Error> {
        // If the arguments are malformed, the tool reports that to the model.
        let parameters: Map<String, Value> = serde_json::from_str(&call.arguments).unwrap_or_default();
        let clock = Instant::now();
        let (tool_name, mut answer) = match self
            .toolbox
            .get()
            .map(|toolbox| (toolbox, toolbox.find(&call.name)))
        {
            Some((toolbox, Some(name))) => {
                let kwargs = state.input.info.as_ref().and_then(|info| info.get(KWARGS)?.as_object());
                let mut all = toolbox.offered(name, parameters.clone());
                all.extend(toolbox.resolved(kwargs.cloned().unwrap_or_default()).await);
                let answer = toolbox.server.execute(&self.worker(state), name, all).await;
                toolbox.note(state.input.example_id, &answer);
                (name, answer.map_err(|error| error.into_error(&format!("cannot call the tool `{name}`")))?)
            }
            missing => {
                let known = missing.map(|(toolbox, _)| toolbox.names()).unwrap_or_default();
                let message = format!("unknown tool '{}'; known tools: {known}", call.name);
                (call.name.as_str(), Answer { code: -1, message, data: Value::Null })
            }
        };
        let picture = text::take_picture(&mut answer);
        let text = text::tool_text(&answer);
        let record = ToolCallRecord {
            tool_name: tool_name.to_owned(),
            parameters: record::parameters(parameters),
            success: answer.code == 0,
            error: (answer.code != 0).then_some(answer.message),
            result: record::result(answer.data),
            execution_time_ms: clock.elapsed().as_millis() as u64,
        };
        if state.resources.get::<RecordedCalls>().is_none() {
            state.resources.insert(RecordedCalls::default());
        }
        if let Some(RecordedCalls(calls)) = state.resources.get_mut() {
            calls.push(Arc::new(record));
        }
        Ok((text, picture))
    }
}

#[async_trait]
impl Interaction for Question {
    fn tool_defs(&self) -> Vec<ToolDef> {
        self.toolbox.get().map(|toolbox| toolbox.defs()).unwrap_or_default()
    }

    fn stops(&self) -> Vec<Stop> {
        vec![
            Stop::new("no_tools_called", |state| {
                last_words(state).is_some_and(|last| last.tool_calls.is_empty())
            }),
            // Before the general condition for a final reply, so that it gets this name.
            Stop::new("max_turns_reached", |state| state.final_env_response.is_some()).priority(1),
        ]
    }

    fn cleanups(&self) -> Vec<Cleanup> {
        vec![Cleanup::new("disconnect", async |state| {
            if let Some(session) = state.resources.remove::<Session>() {
                session.close().await;
            }
            Ok(())
        })]
    }

    async fn setup_state(&self, state: &mut State) -> Result<(), Error> {
        if let Some(toolbox) = self.toolbox.get() {
            let (worker, example) = (self.worker(state), state.input.example_id);
            // Sessions that are open must be closed, even if opening the others fails.
            state.resources.insert(Session::new(Arc::clone(toolbox), worker));
            if let Some(session) = state.resources.get_mut::<Session>() {
                session.open(example).await?;
            }
        }
        Ok(())
    }

    async fn get_prompt_messages(
        &self,
        leader: &dyn Interaction,
        state: &mut State,
    ) -> Result<Messages, Error> {
        let mut messages = next_prompt(leader, state).await?;
        if state.trajectory.len() >= self.max_turns as usize {
            // The calls of the last turn were executed and recorded; the model does not see their results.
            let said: usize =
                state.trajectory.last().map_or(0, |last| last.prompt.len() + last.completion.len());
            state.final_env_response = Some(messages.split_off(said.min(messages.len())));
        }
        Ok(messages)
    }

    async fn get_model_response(&self, state: &mut State, prompt: &MessageList) -> Result<Response, Error> {
        let model = Arc::clone(&state.model);
        match model.client.respond(&model, prompt, &state.tool_defs, &state.trajectory_id).await {
            // A response without text is an empty answer.
            Err(error) if error.is(ErrorKind::EmptyModelResponse) => Ok(Response {
                id: String::new(),
                created: jiff::Timestamp::now().as_second(),
                model: model.name.clone(),
                usage: None,
                message: Message::assistant(""),
                finish_reason: None,
                tokens: None,
                extra: Map::new(),
            }),
            said => said,
        }
    }

    async fn env_response(&self, messages: &MessageList, state: &mut State) -> Result<Messages, Error> {
        let Some(last) = messages.last() else { return Ok(Messages::new()) };
        let mut answers = Messages::with_capacity(last.tool_calls.len());
        let mut pictures = Vec::new();
        for (place, call) in last.tool_calls.iter().enumerate() {
            let (text, picture) = match place < MAX_CALLS {
                true => self.call(call, state).await?,
                false => (format!("not executed: a turn has at most {MAX_CALLS} calls"), None),
            };
            answers.push(Arc::new(Message::tool(&call.id, text)));
            pictures.extend(picture);
        }
        if !pictures.is_empty() {
            // Most servers accept pictures only from users, and only after all tool results.
            pictures.insert(0, json!({"type": "text", "text": "What the tools show:"}));
            answers.push(Arc::new(Message::user(Content::Parts(pictures))));
        }
        Ok(answers)
    }

    async fn render_completion(&self, state: &mut State) -> Result<(), Error> {
        let completion = state.conversation_after_prompt();
        match predicted_answer(&completion) {
            Some(answer) => state.set(PREDICTED_ANSWER, answer)?,
            None if state.prompt_too_long => {
                let text = "the question is longer than the context of the model";
                state.error.get_or_insert_with(|| Error::new(ErrorKind::OverlongPrompt, text));
            }
            None => state.set(PREDICTED_ANSWER, NO_ANSWER)?,
        }
        state.completion = Some(completion);
        Ok(())
    }
}

/// The last message of the model.
fn last_words(state: &State) -> Option<&Arc<Message>> {
    state.trajectory.last()?.completion.last()
}

/// The answer in a conversation: in its last message, or in the last message with text if that one only calls tools.
fn predicted_answer(completion: &MessageList) -> Option<String> {
    let mut spoken = completion.iter().rev().filter(|message| message.role == Role::Assistant).peekable();
    if let Some(last) = spoken.peek()
        && last.tool_calls.is_empty()
    {
        return Some(extract_final_answer(&last.text()));
    }
    let words = spoken.find(|message| !message.text().trim().is_empty())?;
    Some(extract_final_answer(&words.text()))
}
