//! Injected faults of a fake cloud, in words that fit every vendor, and the numbers of its requests.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// What a request asks of a cloud.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CloudCall {
    /// Prepare an image.
    Image,
    /// Create a sandbox.
    Create,
    /// The state of a sandbox.
    State,
    /// The list of sandboxes.
    List,
    /// Open a stream to the guest of a sandbox.
    Stream,
    /// Delete a sandbox.
    Delete,
}

/// A fault of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloudTrouble {
    /// There are too many requests. The cloud asks to wait for these seconds, if it says so.
    Busy(Option<u32>),
    /// The cloud has a fault of its own, and does nothing.
    Failure,
    /// The credentials are not accepted.
    Unauthorized,
    /// The cloud will never do this.
    Refusal,
    /// The account has no room for another sandbox.
    Quota,
    /// The connection is closed before the request is handled.
    LoseRequest,
    /// The request is handled, and the connection is closed before the answer.
    LoseAnswer,
    /// The request is answered as if it succeeded, but is not handled.
    Ignore,
    /// The request takes this long: a slow start.
    Slow(Duration),
    /// The stream is cut after this many bytes from the guest.
    CutStream(u64),
}

/// The faults of a fake cloud.
#[derive(Debug, Default)]
pub struct CloudFaults(Mutex<Faults>);

#[derive(Debug, Default)]
struct Faults {
    /// The faults of the next requests, with the number of requests that each still affects.
    planned: Vec<(CloudCall, CloudTrouble, usize)>,
    /// How many of a hundred requests fail by chance.
    percent: u64,
    chance: Chance,
    limit: Option<usize>,
    calls: BTreeMap<CloudCall, u64>,
    met: u64,
}

impl CloudFaults {
    /// The next request of this kind fails.
    pub fn once(&self, call: CloudCall, trouble: CloudTrouble) {
        self.times(1, call, trouble);
    }

    /// The next requests of this kind fail. Faults of the same kind of request happen one after the other.
    pub fn times(&self, number: usize, call: CloudCall, trouble: CloudTrouble) {
        self.lock().planned.push((call, trouble, number));
    }

    /// From now on, this many of a hundred requests fail, each with a fault that suits it. The choice is the same in
    /// every run.
    pub fn often(&self, percent: u64) {
        self.lock().percent = percent;
    }

    /// Allows this many sandboxes at a time.
    pub fn limit(&self, sandboxes: usize) {
        self.lock().limit = Some(sandboxes);
    }

    /// Removes all faults and the limit.
    pub fn heal(&self) {
        let mut faults = self.lock();
        faults.planned.clear();
        (faults.percent, faults.limit) = (0, None);
    }

    /// The number of requests of a kind so far, with those that failed.
    pub fn calls(&self, call: CloudCall) -> u64 {
        self.lock().calls.get(&call).copied().unwrap_or(0)
    }

    /// The number of requests that failed.
    pub fn met(&self) -> u64 {
        self.lock().met
    }

    /// Counts a request, and returns its fault. `live` is the number of sandboxes that exist.
    pub(crate) fn meet(&self, call: CloudCall, live: usize) -> Option<CloudTrouble> {
        let mut faults = self.lock();
        *faults.calls.entry(call).or_default() += 1;
        let trouble = faults.trouble(call, live);
        faults.met += u64::from(trouble.is_some());
        trouble
    }

    fn lock(&self) -> MutexGuard<'_, Faults> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Faults {
    fn trouble(&mut self, call: CloudCall, live: usize) -> Option<CloudTrouble> {
        if call == CloudCall::Create && self.limit.is_some_and(|limit| live >= limit) {
            return Some(CloudTrouble::Quota);
        }
        if let Some(planned) = self.planned.iter_mut().find(|(on, _, left)| *on == call && *left > 0) {
            planned.2 -= 1;
            return Some(planned.1);
        }
        if self.percent == 0 || self.chance.below(100) >= self.percent {
            return None;
        }
        let suitable = suitable(call);
        let choice = self.chance.below(suitable.len() as u64);
        usize::try_from(choice).ok().and_then(|choice| suitable.get(choice)).copied()
    }
}

/// How long a slow request takes that happens by chance.
const SLOW: Duration = Duration::from_millis(300);

/// The faults that happen by chance. After each of them, another attempt succeeds.
fn suitable(call: CloudCall) -> &'static [CloudTrouble] {
    use CloudTrouble::{Busy, CutStream, Failure, Ignore, LoseAnswer, LoseRequest, Slow};
    match call {
        CloudCall::Image | CloudCall::State | CloudCall::List => {
            &[Busy(None), Busy(Some(1)), Failure, LoseRequest]
        }
        CloudCall::Create => &[Busy(Some(1)), Failure, LoseRequest, LoseAnswer, Slow(SLOW)],
        CloudCall::Stream => &[Failure, LoseRequest, CutStream(100), CutStream(2000)],
        CloudCall::Delete => &[Busy(None), Failure, LoseRequest, LoseAnswer, Ignore],
    }
}

/// Numbers that look random, and are the same in every run.
#[derive(Debug)]
struct Chance(u64);

impl Default for Chance {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_happen_in_order_and_to_their_requests_only() {
        let faults = CloudFaults::default();
        faults.times(2, CloudCall::Create, CloudTrouble::Failure);
        faults.once(CloudCall::Create, CloudTrouble::LoseAnswer);
        assert_eq!(faults.meet(CloudCall::Delete, 0), None);
        let met: Vec<_> = (0..4).map(|_| faults.meet(CloudCall::Create, 0)).collect();
        let failure = Some(CloudTrouble::Failure);
        assert_eq!(met, [failure, failure, Some(CloudTrouble::LoseAnswer), None]);
        assert_eq!((faults.calls(CloudCall::Create), faults.met()), (4, 3));
        faults.limit(1);
        assert_eq!(faults.meet(CloudCall::Create, 0), None);
        assert_eq!(faults.meet(CloudCall::Create, 1), Some(CloudTrouble::Quota));
    }

    #[test]
    fn about_as_many_requests_fail_as_asked_for() {
        let faults = CloudFaults::default();
        faults.often(5);
        let met = (0..10_000).filter(|_| faults.meet(CloudCall::Delete, 0).is_some()).count();
        assert!((400..600).contains(&met), "{met} of 10000 requests failed");
    }
}
