//! Recorded calls in one form, whatever dialect the agent spoke: that of Chat Completions.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{AnswerContext, Target, TranslationError, request};
use crate::{Dialect, record::CallRecord};

/// A call in the form of Chat Completions.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatForm {
    /// The body of the request.
    pub request: Value,
    /// The body of the response.
    pub response: Value,
}

impl CallRecord {
    /// The body of the request in the form of Chat Completions; none if that form cannot express it.
    pub fn chat_request(&self) -> Option<Value> {
        if self.dialect == Dialect::Chat {
            return Some(self.request.clone());
        }
        let request = request(self.dialect, Dialect::Chat, self.request.clone(), &self.target());
        request.ok().map(|request| request.body)
    }

    fn target(&self) -> Target<'_> {
        Target { model: &self.model, asked: &self.model, stream: false, now: self.started.as_second() }
    }

    /// The call in the form of Chat Completions; none if it has no response, or if that form cannot express it.
    pub fn chat_form(&self) -> Option<ChatForm> {
        let response = self.response.clone()?;
        if self.dialect == Dialect::Chat {
            return Some(ChatForm { request: self.request.clone(), response });
        }
        let translated = || -> Result<ChatForm, TranslationError> {
            let request = request(self.dialect, Dialect::Chat, self.request.clone(), &self.target())?;
            let context = AnswerContext {
                client: Dialect::Chat,
                upstream: self.dialect,
                model: self.model.clone(),
                tools: BTreeMap::new(),
                calls: request.context.calls,
                turns: request.context.turns,
                wants_usage: true,
                now: self.started.as_second(),
            };
            Ok(ChatForm { request: request.body, response: context.response(response)? })
        };
        translated().ok()
    }
}
