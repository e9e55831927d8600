//! A conversation in which a function replies to the model.

use std::fmt;

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::{Interaction, Stop};
use crate::{AsyncHook, Error, State};
use rollout_core::message::{MessageList, Messages};

type Answer =
    dyn for<'a> Fn(&'a MessageList, &'a mut State) -> BoxFuture<'a, Result<Messages, Error>> + Send + Sync;

/// A conversation in which a function replies to the model.
///
/// It continues until a stop condition is met: set a number of turns, a [`Stop`], or let the function set
/// [`State::final_env_response`]. Stop conditions are checked after the model's response, so conditions on what the
/// function did are met one turn later. For hooks other than the reply, implement [`Interaction`] instead.
///
/// ```
/// use rollout::model::{Message, MultiTurn};
///
/// let guess = MultiTurn::new(async |messages, state| {
///     if messages.last().map(|last| last.text().into_owned()) == state.input.answer {
///         state.final_env_response = Some(Message::user("right").into());
///     }
///     Ok(Message::user("try again").into())
/// })
/// .max_turns(8);
/// ```
pub struct MultiTurn {
    answer: Box<Answer>,
    max_turns: Option<u32>,
    stops: Vec<Stop>,
}

impl MultiTurn {
    /// A conversation with this function, which receives all messages so far.
    pub fn new<F>(answer: F) -> Self
    where
        F: AsyncFn(&MessageList, &mut State) -> Result<Messages, Error>
            + for<'a> AsyncHook<'a, (&'a MessageList, &'a mut State), Result<Messages, Error>>,
    {
        let answer: Box<Answer> = Box::new(move |messages, state| answer.run((messages, state)));
        Self { answer, max_turns: None, stops: Vec::new() }
    }

    /// Ends it after this many turns.
    #[must_use]
    pub fn max_turns(self, turns: impl Into<Option<u32>>) -> Self {
        Self { max_turns: turns.into(), ..self }
    }

    /// Ends it on a condition.
    #[must_use]
    pub fn stop(mut self, stop: Stop) -> Self {
        self.stops.push(stop);
        self
    }
}

impl fmt::Debug for MultiTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("MultiTurn");
        debug.field("max_turns", &self.max_turns).field("stops", &self.stops).finish_non_exhaustive()
    }
}

#[async_trait]
impl Interaction for MultiTurn {
    fn max_turns(&self) -> Option<u32> {
        self.max_turns
    }

    fn stops(&self) -> Vec<Stop> {
        self.stops.clone()
    }

    async fn env_response(&self, messages: &MessageList, state: &mut State) -> Result<Messages, Error> {
        // One lifetime for both, as the function's type requires.
        async fn call<'a>(
            answer: &Answer,
            messages: &'a MessageList,
            state: &'a mut State,
        ) -> Result<Messages, Error> {
            answer(messages, state).await
        }
        call(&*self.answer, messages, state).await
    }
}
