//! Places for rollouts that several runs share, so that none of them can keep the others out.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

/// How many rollouts run at the same time, over all runs that have a [`Share`] of them.
///
/// A place that becomes free goes to the run that has the fewest, and among equals to the one that waited longest.
///
/// ```
/// # fn example(model: rollout::model::Model) {
/// use std::num::NonZeroU32;
/// use rollout::model::{Places, RunOptions};
///
/// let places = Places::new(NonZeroU32::new(64).unwrap());
/// let one = RunOptions::new(model.clone()).share(places.share());
/// let other = RunOptions::new(model).share(places.share());
/// # }
/// ```
#[derive(Clone)]
pub struct Places(Arc<Mutex<Table>>);

/// One run's part of [`Places`]. Clones are the same part.
#[derive(Clone)]
pub struct Share {
    places: Places,
    party: u64,
}

/// A place that is taken until this is dropped.
#[must_use]
pub struct Place {
    places: Places,
    party: u64,
}

struct Table {
    free: u32,
    taken: u32,
    next_party: u64,
    /// Counts the waits, to tell which is longest.
    next_wait: u64,
    /// Those that have places or wait for some.
    parties: HashMap<u64, Party>,
}

#[derive(Default)]
struct Party {
    taken: u32,
    waiting: VecDeque<(u64, oneshot::Sender<Place>)>,
}

impl Places {
    /// So many places, all free.
    pub fn new(places: NonZeroU32) -> Self {
        let free = places.get();
        Self(Arc::new(Mutex::new(Table {
            free,
            taken: 0,
            next_party: 0,
            next_wait: 0,
            parties: HashMap::new(),
        })))
    }

    /// A part for one more run.
    pub fn share(&self) -> Share {
        let mut table = self.table();
        table.next_party += 1;
        Share { places: self.clone(), party: table.next_party }
    }

    /// How many places are taken.
    pub fn taken(&self) -> usize {
        self.table().taken as usize
    }

    /// How many rollouts wait for a place.
    pub fn waiting(&self) -> usize {
        let table = self.table();
        let waiting = table.parties.values().flat_map(|party| &party.waiting);
        waiting.filter(|(_, waiter)| !waiter.is_closed()).count()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands out what is free.
    fn settle(&self) {
        let granted = self.table().grant();
        // Outside the lock: a place whose waiter has just gone is given back here.
        for (party, waiter) in granted {
            drop(waiter.send(Place { places: self.clone(), party }));
        }
    }
}

impl Share {
    /// Waits for a place, where places are shared at all.
    pub async fn place_in(share: Option<&Self>) -> Option<Place> {
        match share {
            Some(share) => Some(share.place().await),
            None => None,
        }
    }

    /// Waits for a place. Dropping the future gives up the wait.
    pub async fn place(&self) -> Place {
        let (waiter, granted) = oneshot::channel();
        {
            let mut table = self.places.table();
            table.next_wait += 1;
            let wait = table.next_wait;
            table.parties.entry(self.party).or_default().waiting.push_back((wait, waiter));
        }
        self.places.settle();
        granted.await.expect("the table, which this share keeps alive, lets every waiter in that is there")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        {
            let mut table = self.places.table();
            table.free += 1;
            table.taken -= 1;
            if let Some(party) = table.parties.get_mut(&self.party) {
                party.taken -= 1;
            }
        }
        self.places.settle();
    }
}

impl Table {
    /// Decides who gets the places that are free.
    fn grant(&mut self) -> Vec<(u64, oneshot::Sender<Place>)> {
        self.parties.retain(|_, party| {
            while party.waiting.front().is_some_and(|(_, waiter)| waiter.is_closed()) {
                party.waiting.pop_front();
            }
            party.taken > 0 || !party.waiting.is_empty()
        });
        let mut granted = Vec::new();
        while self.free > 0 {
            let waiting = self.parties.iter_mut().filter_map(|(id, party)| {
                let (wait, _) = party.waiting.front()?;
                Some(((party.taken, *wait), *id, party))
            });
            let Some((_, id, party)) = waiting.min_by_key(|(order, _, _)| *order) else { break };
            let Some((_, waiter)) = party.waiting.pop_front() else { break };
            if waiter.is_closed() {
                continue;
            }
            party.taken += 1;
            self.taken += 1;
            self.free -= 1;
            granted.push((id, waiter));
        }
        granted
    }
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table();
        write!(f, "Places({} taken, {} free)", table.taken, table.free)
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Share({} of {:?})", self.party, self.places)
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({})", self.party)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, future::BoxFuture};

    use super::*;

    fn places(number: u32) -> Places {
        Places::new(NonZeroU32::new(number).unwrap())
    }

    /// A wait that has begun.
    fn wait(share: &Share) -> BoxFuture<'static, Place> {
        let share = share.clone();
        let mut wait = async move { share.place().await }.boxed();
        match (&mut wait).now_or_never() {
            Some(place) => std::future::ready(place).boxed(),
            None => wait,
        }
    }

    #[tokio::test]
    async fn no_more_places_are_taken_than_there_are() {
        let places = places(2);
        let share = places.share();
        let held = [share.place().await, share.place().await];
        let third = wait(&share);
        assert_eq!((places.taken(), places.waiting()), (2, 1));
        drop(held);
        let third = third.await;
        assert_eq!((places.taken(), places.waiting()), (1, 0));
        drop(third);
        assert_eq!(places.taken(), 0);
        assert!(places.table().parties.len() <= 1);
    }

    #[tokio::test]
    async fn a_free_place_goes_to_the_run_that_has_fewest() {
        let places = places(4);
        let (greedy, modest) = (places.share(), places.share());
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(greedy.place().await);
        }
        let mut of_greedy: Vec<_> = (0..9).map(|_| wait(&greedy)).collect();
        let mut of_modest: Vec<_> = (0..9).map(|_| wait(&modest)).collect();
        let mut got = String::new();
        let mut kept = Vec::new();
        for place in held {
            drop(place);
            let modest_first = (&mut of_modest[0]).now_or_never();
            let place = match modest_first {
                Some(place) => {
                    got.push('m');
                    drop(of_modest.remove(0));
                    place
                }
                None => {
                    got.push('g');
                    of_greedy.remove(0).now_or_never().unwrap()
                }
            };
            kept.push(place);
        }
        assert_eq!(got, "mmgg", "both have two in the end");
    }

    #[tokio::test]
    async fn a_wait_that_is_given_up_costs_no_place() {
        let places = places(1);
        let share = places.share();
        let first = share.place().await;
        let given_up = wait(&share);
        let granted_and_dropped = wait(&share);
        let last = wait(&share);
        drop(given_up);
        assert_eq!(places.waiting(), 2);
        drop(first);
        drop(granted_and_dropped);
        drop(last.now_or_never().expect("the place came back"));
        assert_eq!((places.taken(), places.waiting()), (0, 0));
    }
}
