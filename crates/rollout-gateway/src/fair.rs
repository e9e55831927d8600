//! A gate with a number of places that are given to sessions in turn.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

/// Gives places to sessions in turn: a session with many waiting calls does not delay another one with a single call.
#[derive(Debug)]
pub(crate) struct FairGate(Mutex<State>);

#[derive(Debug)]
struct State {
    free: usize,
    /// The sessions that wait, the next one first. None has an empty queue.
    waiting: VecDeque<(u64, VecDeque<oneshot::Sender<Place>>)>,
}

/// A place. It is given to the next session when it is dropped.
#[derive(Debug)]
pub(crate) struct Place(Option<Arc<FairGate>>);

impl FairGate {
    pub(crate) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { free: places, waiting: VecDeque::new() })))
    }

    /// Waits for a place. Dropping the future gives up the turn.
    pub(crate) async fn enter(self: &Arc<Self>, session: u64) -> Place {
        let turn = {
            let mut state = self.lock();
            if state.free > 0 {
                state.free -= 1;
                return Place(Some(Arc::clone(self)));
            }
            let (give, turn) = oneshot::channel();
            match state.waiting.iter_mut().find(|(waiting, _)| *waiting == session) {
                Some((_, queue)) => queue.push_back(give),
                None => state.waiting.push_back((session, VecDeque::from([give]))),
            }
            turn
        };
        turn.await.expect("a sender is dropped only after it has given a place")
    }

    /// The number of calls that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting.iter().map(|(_, queue)| queue.len()).sum()
    }

    /// The next call in the order of sessions.
    fn next(&self) -> Option<oneshot::Sender<Place>> {
        let mut state = self.lock();
        let Some((session, mut queue)) = state.waiting.pop_front() else {
            state.free += 1;
            return None;
        };
        let next = queue.pop_front();
        if !queue.is_empty() {
            state.waiting.push_back((session, queue));
        }
        next
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(gate) = self.0.take() else { return };
        // A call that gave up does not take its place.
        while let Some(next) = gate.next() {
            match next.send(Self(Some(Arc::clone(&gate)))) {
                Ok(()) => return,
                Err(mut place) => place.0 = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sessions_get_places_in_turn() {
        let gate = FairGate::new(1);
        let held = gate.enter(0).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut calls = Vec::new();
        for session in [1, 1, 1, 2, 3, 2] {
            let (gate, order) = (Arc::clone(&gate), Arc::clone(&order));
            calls.push(tokio::spawn(async move {
                let _place = gate.enter(session).await;
                order.lock().unwrap().push(session);
            }));
            tokio::task::yield_now().await;
        }
        drop(held);
        for call in calls {
            call.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [1, 2, 3, 1, 2, 1]);
        assert_eq!(gate.lock().free, 1);
    }

    #[tokio::test]
    async fn a_call_that_gives_up_takes_no_place() {
        let gate = FairGate::new(1);
        let held = gate.enter(0).await;
        let other = Arc::clone(&gate);
        let gone = tokio::spawn(async move { other.enter(1).await });
        tokio::task::yield_now().await;
        gone.abort();
        assert!(gone.await.is_err());
        drop(held);
        assert_eq!(gate.lock().free, 1);
        gate.enter(2).await;
    }
}
