//! A conversation whose other side is a function.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::{Interaction, Stop};
use crate::{Error, State};
use rollout_core::message::{Message, Messages};

type Answer =
    dyn for<'a> Fn(&'a [Arc<Message>], &'a mut State) -> BoxFuture<'a, Result<Messages, Error>> + Send + Sync;

/// A conversation in which a function answers the model.
///
/// It goes on until a stop condition is met: give it a number of turns, a [`Stop`], or let the function set
/// [`State::final_env_response`]. Stop conditions are asked after the model has spoken, so those that look at what the
/// function did are met a turn later. For hooks beside the answer, implement [`Interaction`] instead.
///
/// ```
/// use std::sync::Arc;
///
/// use rollout::model::{Message, MultiTurn};
///
/// let guess = MultiTurn::new(|messages, state| {
///     Box::pin(async move {
///         let answer = |text| vec![Arc::new(Message::user(text))];
///         if messages.last().map(|last| last.text().into_owned()) == state.input.answer {
///             state.final_env_response = Some(answer("right"));
///         }
///         Ok(answer("try again"))
///     })
/// })
/// .max_turns(8);
/// ```
pub struct MultiTurn {
    answer: Box<Answer>,
    max_turns: Option<u32>,
    stops: Vec<Stop>,
}

impl MultiTurn {
    /// A conversation with this function, which is given all that was said so far.
    pub fn new(
        answer: impl for<'a> Fn(&'a [Arc<Message>], &'a mut State) -> BoxFuture<'a, Result<Messages, Error>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self { answer: Box::new(answer), max_turns: None, stops: Vec::new() }
    }

    /// Ends it after so many turns.
    #[must_use]
    pub fn max_turns(self, turns: u32) -> Self {
        Self { max_turns: Some(turns), ..self }
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

    async fn env_response(&self, messages: &[Arc<Message>], state: &mut State) -> Result<Messages, Error> {
        // One lifetime for both, as the function's type asks for.
        async fn call<'a>(
            answer: &Answer,
            messages: &'a [Arc<Message>],
            state: &'a mut State,
        ) -> Result<Messages, Error> {
            answer(messages, state).await
        }
        call(&*self.answer, messages, state).await
    }
}
