//! From the gateway's record of an agent's calls to the conversation that they are.
//!
//! An agent sends its whole conversation with each call, and asks for other things beside it, such as a title. Calls
//! that begin with the same message are one thread; the longest thread is the conversation. The others are counted:
//! sub-agents, what followed after the conversation was summarized, and questions such as that for a title.

use std::{
    collections::HashMap,
    fs::File,
    hash::BuildHasher as _,
    io::{self, BufRead, BufReader, Seek as _, SeekFrom},
    path::Path,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use serde_json::Value;

use super::trajectory::{OtherThreads, OwnConversation, Trajectory, Turn};
use rollout_core::{
    message::{Message, MessageList, Messages, Role, ToolDef},
    response::{Response, TokenUsage},
};
use rollout_gateway::{CallError, CallRecord, ChatForm};
use rollout_record::lines::Lines;

/// The calls of one try.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// How many calls were read.
    read: u64,
    threads: Vec<Thread>,
    /// How the last call of each kind ended.
    ends: HashMap<CallKind, CallEnd>,
    /// How many calls of tools the answers have.
    tool_calls: u64,
}

#[derive(Debug)]
struct Thread {
    /// The hash of the first message that is not of the system.
    first: u64,
    started_at: Timestamp,
    ended_at: f64,
    model: String,
    tools: Vec<ToolDef>,
    prompt: Messages,
    turns: Vec<Turn>,
    /// How many messages the last call sent.
    sent: usize,
}

/// What distinguishes the calls of a conversation from those beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct CallKind {
    /// As in [`Thread`].
    first: u64,
    offers_tools: bool,
}

/// How the last call of a kind ended.
#[derive(Debug)]
struct CallEnd {
    /// Its number among all calls.
    number: u64,
    /// Whether it sent messages that can be read.
    has_messages: bool,
    /// Why it failed, if it did.
    error: Option<CallError>,
}

/// What the failure of the last calls means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastError<'a> {
    /// The conversation ended by it.
    Conversation {
        error: &'a CallError,
        /// Whether the model has answered an earlier call of the conversation.
        is_answered: bool,
    },
    /// Only a call beside the conversation failed, such as one for a title.
    Aside(&'a CallError),
}

impl Calls {
    /// Reads a record. Lines that cannot be read are left out. Blocks.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            file => Self::read_lines(BufReader::new(file?)),
        }
    }

    /// Reads the last calls of a record, in about so many bytes, and at least one of those that ask a model. Blocks.
    pub(crate) fn read_end(mut file: File, bytes: u64) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let mut start = length.saturating_sub(bytes);
        loop {
            file.seek(SeekFrom::Start(start))?;
            let mut reader = BufReader::new(&mut file);
            if start > 0 {
                // The part of a call before the first whole one.
                reader.skip_until(b'\n')?;
            }
            let calls = Self::read_lines(reader)?;
            // A call that shortened the conversation is not a part of it.
            if start == 0 || !calls.ends.is_empty() {
                return Ok(calls);
            }
            start = start.saturating_sub(length / 4 + 1);
        }
    }

    fn read_lines(reader: impl BufRead) -> io::Result<Self> {
        let mut calls = Self::default();
        let mut lines = Lines::new(reader);
        while let Some(line) = lines.next_line()? {
            if let Ok(call) = serde_json::from_slice(line.bytes) {
                calls.read += 1;
                calls.add(call);
            }
        }
        Ok(calls)
    }

    /// Why the last call failed, if it did.
    pub(crate) fn last_error(&self) -> Option<LastError<'_>> {
        let conversation = self.conversation();
        // An agent that goes on from a summary begins another thread, but still offers its tools.
        let is_aside = |kind: &CallKind| {
            conversation.is_some_and(|thread| {
                !thread.tools.is_empty() && !kind.offers_tools && thread.first != kind.first
            })
        };
        // An answered title is no answer in the conversation. A call without messages may be one of any thread.
        let is_answered = |kind: &CallKind, end: &CallEnd| {
            self.threads.iter().any(|thread| {
                let is_title = thread.tools.is_empty() && thread.turns.len() == 1;
                !is_title || thread.first == kind.first || !kind.offers_tools || !end.has_messages
            })
        };
        let of_conversation = self.ends.iter().filter(|(kind, _)| !is_aside(kind));
        let last = of_conversation.max_by_key(|(_, end)| end.number);
        match last.and_then(|(kind, end)| Some((kind, end, end.error.as_ref()?))) {
            Some((kind, end, error)) => {
                Some(LastError::Conversation { error, is_answered: is_answered(kind, end) })
            }
            None => {
                let last = self.ends.values().max_by_key(|end| end.number)?;
                last.error.as_ref().map(LastError::Aside)
            }
        }
    }

    /// How many calls of tools the answers have.
    pub(crate) fn tool_calls(&self) -> u64 {
        self.tool_calls
    }

    /// The messages of the conversation; empty if the model never answered.
    pub(crate) fn into_messages(self) -> Messages {
        let Some(thread) = self.into_conversation() else { return Messages::new() };
        let turns = thread
            .turns
            .into_iter()
            .flat_map(|turn| std::iter::once(Arc::new(turn.response.message.clone())).chain(turn.answers));
        thread.prompt.into_iter().chain(turns).collect()
    }

    fn conversation(&self) -> Option<&Thread> {
        // Of equally long ones the first: `max_by_key` takes the last.
        self.threads.iter().rev().max_by_key(|thread| thread.turns.len())
    }

    fn into_conversation(self) -> Option<Thread> {
        self.threads.into_iter().rev().max_by_key(|thread| thread.turns.len())
    }

    /// The conversation; none if the model never answered.
    pub(crate) fn into_trajectory(self) -> Option<Trajectory> {
        let all = (self.threads.len(), self.threads.iter().map(|thread| thread.turns.len()).sum::<usize>());
        let thread = self.into_conversation()?;
        let others = OtherThreads { threads: all.0 - 1, turns: all.1 - thread.turns.len() };
        let time = (thread.ended_at - seconds(thread.started_at)).max(0.0);
        let own = OwnConversation {
            model: thread.model,
            started_at: thread.started_at,
            time: Duration::try_from_secs_f64(time).unwrap_or_default(),
            tools: thread.tools,
            prompt: thread.prompt,
            turns: thread.turns,
        };
        Some(Trajectory::from(own).beside(others))
    }

    /// Notes how a call ended, and returns the hash of the first message of its thread.
    fn end(&mut self, messages: &MessageList, offers_tools: bool, error: Option<CallError>) -> u64 {
        let first = messages.iter().find(|message| !is_system(message));
        let first = first.map(|message| message.text()).unwrap_or_default();
        let first = self.ends.hasher().hash_one(&*first);
        let end = CallEnd { number: self.read, has_messages: !messages.is_empty(), error };
        self.ends.insert(CallKind { first, offers_tools }, end);
        first
    }

    fn add(&mut self, call: CallRecord) {
        // It is no turn: the agent goes on from the shorter form, which its next call sends. Without it, the agent may end.
        if call.compacts && call.error.is_none() {
            return;
        }
        let form = if call.error.is_none() { call.chat_form() } else { None };
        let Some(ChatForm { request, response }) = form else {
            let request = call.chat_request();
            let messages = request.as_ref().map(messages).unwrap_or_default();
            // A request that cannot be read may be one of the conversation.
            let offers_tools = request.as_ref().is_none_or(offers_tools);
            self.end(&messages, offers_tools, call.error);
            return;
        };
        let messages = messages(&request);
        let first = self.end(&messages, offers_tools(&request), None);
        let Some(response) = read_response(&call, response) else { return };
        self.tool_calls += response.message.tool_calls.len() as u64;
        let place = self.threads.iter().position(|thread| thread.first == first);
        let turn = Turn {
            response: Arc::new(response),
            model_time: Duration::try_from_secs_f64(call.latency).unwrap_or_default(),
            answers: Messages::new(),
            tools_time: None,
        };
        let (begun, ended) = (seconds(call.started), seconds(call.started) + call.latency);
        let Some(thread) = place.map(|place| &mut self.threads[place]) else {
            self.threads.push(Thread {
                first,
                started_at: call.started,
                ended_at: ended,
                model: call.model,
                tools: tools(&request),
                sent: messages.len(),
                prompt: messages,
                turns: vec![turn],
            });
            return;
        };
        if let Some(last) = thread.turns.last_mut() {
            let new = messages.get(thread.sent..).unwrap_or_default();
            // The response itself comes back before the answers to it.
            let answers = new.iter().skip_while(|message| message.role == Role::Assistant);
            last.answers = answers.cloned().collect();
            last.tools_time = Duration::try_from_secs_f64(begun - thread.ended_at).ok();
        }
        thread.sent = messages.len();
        thread.ended_at = ended;
        thread.turns.push(turn);
    }
}

fn seconds(at: Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1000.0
}

fn is_system(message: &Message) -> bool {
    match &message.role {
        Role::System => true,
        Role::Other(role) => role == "developer",
        _ => false,
    }
}

fn messages(request: &Value) -> Messages {
    let listed = request["messages"].as_array().into_iter().flatten();
    listed.filter_map(|message| serde_json::from_value(message.clone()).ok()).map(Arc::new).collect()
}

fn offers_tools(request: &Value) -> bool {
    let mut listed = request["tools"].as_array().into_iter().flatten();
    listed.any(|tool| tool["function"]["name"].is_string())
}

fn tools(request: &Value) -> Vec<ToolDef> {
    let listed = request["tools"].as_array().into_iter().flatten();
    let tool = |tool: &Value| {
        let function = &tool["function"];
        Some(ToolDef {
            name: function["name"].as_str()?.to_owned(),
            description: function["description"].as_str().unwrap_or_default().to_owned(),
            parameters: function["parameters"].clone(),
            strict: function["strict"].as_bool(),
        })
    };
    listed.filter_map(tool).collect()
}

fn read_response(call: &CallRecord, mut response: Value) -> Option<Response> {
    let choice = response["choices"].get_mut(0)?.take();
    let message = serde_json::from_value(choice["message"].clone()).ok()?;
    let finish_reason = choice["finish_reason"].as_str().map(|reason| reason.to_owned().into());
    Some(Response {
        id: response["id"].as_str().unwrap_or_default().to_owned(),
        created: call.started.as_second(),
        model: call.model.clone(),
        usage: call.usage.map(|usage| TokenUsage { cost: call.cost, ..usage }),
        message,
        finish_reason,
        tokens: call.tokens.clone(),
        extra: serde_json::Map::new(),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use serde_json::json;

    use super::*;

    fn call(id: u64, dialect: &str, request: Value, response: Value) -> Value {
        json!({
            "id": id, "started": format!("2026-01-01T00:00:0{id}Z"), "latency": 0.5, "first_token": 0.1,
            "dialect": dialect, "upstream_dialect": dialect, "model_asked": "m", "model": "m", "streamed": false,
            "request": request, "response": response, "status": 200, "error": null,
            "usage": {"prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 2, "total_tokens": 12},
            "raw_usage": null, "cost": 0.25, "tokens": null, "removed": [], "notes": [], "session_ids": {}, "retry": null,
            "tries": 1, "cached": false, "truncated": false,
        })
    }

    fn read(calls: &[Value]) -> Calls {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for call in calls {
            writeln!(file, "{call}").unwrap();
        }
        Calls::read(file.path()).unwrap()
    }

    fn written(calls: &[Value]) -> Value {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trajectory.json");
        read(calls)
            .into_trajectory()
            .unwrap()
            .write(&path, &rollout_core::redact::Redactor::default())
            .unwrap();
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn the_calls_of_an_agent_are_a_conversation_and_other_calls_are_left_out() {
        let user = json!({"role": "user", "content": [{"type": "text", "text": "do it"}]});
        let said = json!({"role": "assistant", "content": [
            {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}]});
        let answer = json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a.txt"}]});
        let tools = json!([{"name": "Bash", "description": "Runs", "input_schema": {"type": "object"}}]);
        let request = |messages: Value| {
            json!({
            "model": "m", "max_tokens": 9, "system": "be good", "messages": messages, "tools": tools.clone()})
        };
        let response = |content: Value, stop: &str| {
            json!({
            "id": "r", "type": "message", "role": "assistant", "model": "m", "content": content,
            "stop_reason": stop, "usage": {"input_tokens": 6, "output_tokens": 2}})
        };
        let title =
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "a title"}]});
        let file = written(&[
            call(1, "messages", title, response(json!([{"type": "text", "text": "Title"}]), "end_turn")),
            call(2, "messages", request(json!([user])), response(said["content"].clone(), "tool_use")),
            call(
                3,
                "messages",
                request(json!([user, said, answer])),
                response(json!([{"type": "text", "text": "done"}]), "end_turn"),
            ),
        ]);
        assert_eq!(file["prompt"][0]["role"], "system");
        assert_eq!(file["prompt"].as_array().unwrap().len(), 2);
        assert_eq!(file["tools"][0]["name"], "Bash");
        assert_eq!(file["turns"].as_array().unwrap().len(), 2);
        assert_eq!(
            (&file["origin"], &file["other_threads"]),
            (&json!("gateway"), &json!({"threads": 1, "turns": 1}))
        );
        let first = &file["turns"][0];
        assert_eq!(first["response"]["message"]["tool_calls"][0]["name"], "Bash");
        assert_eq!(first["answers"][0]["tool_call_id"], "t1");
        assert_eq!(file["turns"][1]["response"]["message"]["content"], "done");
        assert_eq!(
            file["usage"],
            json!({"input_tokens": 20, "output_tokens": 4, "cached_tokens": 8, "cost_usd": 0.5})
        );
    }

    #[test]
    fn the_end_of_a_record_has_the_whole_conversation() {
        let message = |role: &str, text: &str| json!({"role": role, "content": text});
        let mut said = vec![message("user", "do it")];
        let mut calls = Vec::new();
        for number in 1..9 {
            let answer = format!("answer {number}");
            let request = json!({"model": "m", "messages": said});
            let response = json!({"id": "r", "choices": [{"message": message("assistant", &answer), "finish_reason": "stop"}]});
            calls.push(call(number, "chat", request, response));
            said.extend([message("assistant", &answer), message("user", "go on")]);
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        calls.iter().for_each(|call| writeln!(file, "{call}").unwrap());
        let texts = |calls: Calls| {
            calls.into_messages().iter().map(|message| message.text().into_owned()).collect::<Vec<_>>()
        };
        let all = texts(Calls::read(file.path()).unwrap());
        assert_eq!((all.len(), all.last().unwrap().as_str()), (16, "answer 8"));
        for bytes in [1, 1_000, 4_000, 1 << 20] {
            let file = File::open(file.path()).unwrap();
            assert_eq!(texts(Calls::read_end(file, bytes).unwrap()), all, "{bytes} bytes");
        }
    }

    #[test]
    fn the_end_of_a_record_is_more_than_a_shortened_conversation() {
        let message = |role: &str, text: &str| json!({"role": role, "content": text});
        let request = json!({"model": "m", "messages": [message("user", "do it")]});
        let answer = json!({"id": "r", "choices": [{"message": message("assistant", "so far"), "finish_reason": "stop"}]});
        let shortened =
            json!({"id": "c", "output": [{"type": "compaction", "encrypted_content": "x".repeat(4_000)}]});
        let input = json!({"model": "m", "input": [message("user", "do it")]});
        let mut compaction = call(2, "responses", input, shortened);
        compaction["compacts"] = json!(true);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        [call(1, "chat", request, answer), compaction]
            .iter()
            .for_each(|call| writeln!(file, "{call}").unwrap());
        for bytes in [1, 1_000, 1 << 20] {
            let calls = Calls::read_end(File::open(file.path()).unwrap(), bytes).unwrap();
            let messages = calls.into_messages();
            let last = messages.last().map(|message| message.text().into_owned());
            assert_eq!(last.as_deref(), Some("so far"), "{bytes} bytes");
        }
    }

    #[test]
    fn a_conversation_that_cannot_be_shortened_ends_by_that_failure() {
        let message = |role: &str, text: &str| json!({"role": role, "content": text});
        let request = json!({"model": "m", "messages": [message("user", "do it")]});
        let answer = json!({"id": "r", "choices": [{"message": message("assistant", "so far"), "finish_reason": "stop"}]});
        let input = json!({"model": "m", "input": [message("user", "do it")]});
        let mut compaction = call(2, "responses", input, Value::Null);
        compaction["compacts"] = json!(true);
        let of = |compaction: &Value| {
            read(&[call(1, "chat", request.clone(), answer.clone()), compaction.clone()])
        };
        assert!(of(&compaction).last_error().is_none());

        compaction["error"] = json!({"kind": "unauthorized", "message": "wrong key"});
        let calls = of(&compaction);
        assert!(
            matches!(calls.last_error(), Some(LastError::Conversation { error, .. }) if error.message == "wrong key")
        );
        assert_eq!(calls.into_messages().len(), 2);
    }

    #[test]
    fn a_failed_call_is_no_turn_and_the_last_one_is_remembered() {
        let request = json!({"model": "m", "messages": [{"role": "user", "content": "do it"}]});
        let mut failed = call(1, "chat", request, Value::Null);
        failed["error"] = json!({"kind": "rate_limited", "message": "slow down"});
        let calls = read(&[failed]);
        assert!(
            matches!(calls.last_error(), Some(LastError::Conversation { error, .. }) if error.message == "slow down")
        );
        assert!(calls.into_trajectory().is_none());
    }

    #[test]
    fn a_failed_call_ends_the_conversation_unless_it_is_beside_it() {
        let tools =
            json!([{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]);
        let said = |text: &str| json!([{"role": "user", "content": text}]);
        let with_tools = |text: &str| json!({"model": "m", "messages": said(text), "tools": tools.clone()});
        let plain = |text: &str| json!({"model": "m", "messages": said(text)});
        let answer = json!({"id": "r", "choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}]});
        let answered = |id, request: Value| call(id, "chat", request, answer.clone());
        let failed = |id, request: Value| {
            let mut failed = call(id, "chat", request, Value::Null);
            failed["error"] = json!({"kind": "upstream_failed", "message": "out of order"});
            failed
        };
        let work = || answered(1, with_tools("do it"));
        let title = || failed(3, plain("a title"));
        for (calls, expected) in [
            (vec![work()], None),
            (vec![title(), work()], None),
            (vec![work(), title()], Some(false)),
            // The failure before the title is that of the conversation.
            (vec![work(), failed(2, with_tools("do it")), title()], Some(true)),
            (vec![work(), failed(2, with_tools("do it")), answered(3, plain("a title"))], Some(true)),
            // A summary of the conversation, and how it goes on from there.
            (vec![work(), failed(2, plain("do it"))], Some(true)),
            (vec![work(), failed(2, with_tools("this was done so far"))], Some(true)),
            (vec![answered(1, plain("a title")), failed(2, with_tools("do it"))], Some(true)),
            // An agent without tools: nothing distinguishes its calls.
            (vec![answered(1, plain("do it")), title()], Some(true)),
        ] {
            let calls = read(&calls);
            let ended = calls.last_error().map(|error| matches!(error, LastError::Conversation { .. }));
            assert_eq!(ended, expected, "{calls:?}");
        }
    }

    #[test]
    fn an_answer_to_a_call_beside_the_conversation_is_none_in_it() {
        let tools =
            json!([{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]);
        let plain = |text: &str| json!({"model": "m", "messages": [{"role": "user", "content": text}]});
        let with_tools = |text: &str| {
            let mut request = plain(text);
            request["tools"] = tools.clone();
            request
        };
        let message = json!({"role": "assistant", "content": "so"});
        let answer = json!({"id": "r", "choices": [{"message": message, "finish_reason": "stop"}]});
        let answered = |id, request: Value| call(id, "chat", request, answer.clone());
        let failed_in = |dialect: &str, request: Value| {
            let mut call = call(3, dialect, request, Value::Null);
            call["error"] = json!({"kind": "refused", "message": "no"});
            call
        };
        let failed = |request: Value| failed_in("chat", request);
        for (calls, expected) in [
            (vec![failed(with_tools("do it"))], false),
            (vec![answered(1, plain("a title")), failed(with_tools("do it"))], false),
            (vec![answered(1, with_tools("do it")), failed(with_tools("do it"))], true),
            (vec![answered(1, with_tools("do it")), failed(with_tools("done so far"))], true),
            (vec![answered(1, with_tools("do it")), failed_in("messages", json!("no request"))], true),
            // Without tools, nothing distinguishes calls.
            (vec![answered(1, plain("do it")), failed(plain("other"))], true),
            (vec![answered(1, plain("do it")), failed(json!({}))], true),
            (
                vec![answered(1, plain("do it")), answered(2, plain("do it")), failed(with_tools("other"))],
                true,
            ),
        ] {
            let shown = format!("{calls:?}");
            let Some(LastError::Conversation { is_answered, .. }) = read(&calls).last_error() else {
                panic!("{shown}");
            };
            assert_eq!(is_answered, expected, "{shown}");
        }
    }
}
