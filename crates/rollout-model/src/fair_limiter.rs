//! A limit on concurrent rollouts that several runs share fairly.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

/// Limits how many rollouts run at the same time, over all runs that have a [`Share`] of it.
///
/// A free permit goes to the run with the fewest permits, and among equals to the one that has waited longest.
///
/// ```
/// # fn example(model: rollout::model::Model) {
/// use std::num::NonZeroU32;
/// use rollout::model::{FairLimiter, RunOptions};
///
/// let limiter = FairLimiter::new(NonZeroU32::new(64).unwrap());
/// let one = RunOptions::new(model.clone()).share(limiter.share());
/// let other = RunOptions::new(model).share(limiter.share());
/// # }
/// ```
#[derive(Clone)]
pub struct FairLimiter(Arc<Mutex<Table>>);

/// One run's share of a [`FairLimiter`]. Clones are the same share.
#[derive(Clone)]
pub struct Share {
    limiter: FairLimiter,
    party: u64,
}

/// The permit of one rollout. Dropping it returns it.
#[must_use]
pub struct FairPermit {
    limiter: FairLimiter,
    party: u64,
}

struct Table {
    free: u32,
    taken: u32,
    next_party: u64,
    /// Numbers the waiters in order of arrival.
    next_wait: u64,
    /// Runs that have permits or wait for them.
    parties: HashMap<u64, Party>,
}

#[derive(Default)]
struct Party {
    taken: u32,
    waiting: VecDeque<(u64, oneshot::Sender<FairPermit>)>,
}

impl FairLimiter {
    /// A limiter with this many permits.
    pub fn new(permits: NonZeroU32) -> Self {
        let free = permits.get();
        Self(Arc::new(Mutex::new(Table {
            free,
            taken: 0,
            next_party: 0,
            next_wait: 0,
            parties: HashMap::new(),
        })))
    }

    /// A share for one more run.
    pub fn share(&self) -> Share {
        let mut table = self.table();
        table.next_party += 1;
        Share { limiter: self.clone(), party: table.next_party }
    }

    /// How many permits are in use.
    pub fn taken(&self) -> usize {
        self.table().taken as usize
    }

    /// How many rollouts wait for a permit.
    pub fn waiting(&self) -> usize {
        let table = self.table();
        let waiting = table.parties.values().flat_map(|party| &party.waiting);
        waiting.filter(|(_, waiter)| !waiter.is_closed()).count()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants the free permits.
    fn settle(&self) {
        let granted = self.table().grant();
        // Outside the lock: the permit of a waiter that was just cancelled is returned here.
        for (party, waiter) in granted {
            drop(waiter.send(FairPermit { limiter: self.clone(), party }));
        }
    }
}

impl Share {
    /// Waits for a permit, if there is a share.
    pub async fn acquire_from(share: Option<&Self>) -> Option<FairPermit> {
        match share {
            Some(share) => Some(share.acquire().await),
            None => None,
        }
    }

    /// Waits for a permit. Dropping the future cancels the wait.
    pub async fn acquire(&self) -> FairPermit {
        let (waiter, granted) = oneshot::channel();
        {
            let mut table = self.limiter.table();
            table.next_wait += 1;
            let wait = table.next_wait;
            table.parties.entry(self.party).or_default().waiting.push_back((wait, waiter));
        }
        self.limiter.settle();
        granted.await.expect("the table, which this share keeps alive, grants a permit to every waiter")
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        {
            let mut table = self.limiter.table();
            table.free += 1;
            table.taken -= 1;
            if let Some(party) = table.parties.get_mut(&self.party) {
                party.taken -= 1;
            }
        }
        self.limiter.settle();
    }
}

impl Table {
    /// Decides which waiters get the free permits.
    fn grant(&mut self) -> Vec<(u64, oneshot::Sender<FairPermit>)> {
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

impl fmt::Debug for FairLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table();
        write!(f, "FairLimiter({} taken, {} free)", table.taken, table.free)
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Share({} of {:?})", self.party, self.limiter)
    }
}

impl fmt::Debug for FairPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FairPermit({})", self.party)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, future::BoxFuture};

    use super::*;

    fn limiter(number: u32) -> FairLimiter {
        FairLimiter::new(NonZeroU32::new(number).unwrap())
    }

    /// A wait that has started.
    fn wait(share: &Share) -> BoxFuture<'static, FairPermit> {
        let share = share.clone();
        let mut wait = async move { share.acquire().await }.boxed();
        match (&mut wait).now_or_never() {
            Some(permit) => std::future::ready(permit).boxed(),
            None => wait,
        }
    }

    #[tokio::test]
    async fn no_more_permits_are_granted_than_there_are() {
        let limiter = limiter(2);
        let share = limiter.share();
        let held = [share.acquire().await, share.acquire().await];
        let third = wait(&share);
        assert_eq!((limiter.taken(), limiter.waiting()), (2, 1));
        drop(held);
        let third = third.await;
        assert_eq!((limiter.taken(), limiter.waiting()), (1, 0));
        drop(third);
        assert_eq!(limiter.taken(), 0);
        assert!(limiter.table().parties.len() <= 1);
    }

    #[tokio::test]
    async fn a_free_permit_goes_to_the_run_with_the_fewest() {
        let limiter = limiter(4);
        let (greedy, modest) = (limiter.share(), limiter.share());
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(greedy.acquire().await);
        }
        let mut of_greedy: Vec<_> = (0..9).map(|_| wait(&greedy)).collect();
        let mut of_modest: Vec<_> = (0..9).map(|_| wait(&modest)).collect();
        let mut got = String::new();
        let mut kept = Vec::new();
        for permit in held {
            drop(permit);
            let modest_first = (&mut of_modest[0]).now_or_never();
            let permit = match modest_first {
                Some(permit) => {
                    got.push('m');
                    drop(of_modest.remove(0));
                    permit
                }
                None => {
                    got.push('g');
                    of_greedy.remove(0).now_or_never().unwrap()
                }
            };
            kept.push(permit);
        }
        assert_eq!(got, "mmgg", "both have two in the end");
    }

    #[tokio::test]
    async fn a_cancelled_wait_takes_no_permit() {
        let limiter = limiter(1);
        let share = limiter.share();
        let first = share.acquire().await;
        let given_up = wait(&share);
        let granted_and_dropped = wait(&share);
        let last = wait(&share);
        drop(given_up);
        assert_eq!(limiter.waiting(), 2);
        drop(first);
        drop(granted_and_dropped);
        drop(last.now_or_never().expect("the permit was returned"));
        assert_eq!((limiter.taken(), limiter.waiting()), (0, 0));
    }
}
