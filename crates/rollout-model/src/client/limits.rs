//! Limits on requests and tokens per minute, shared by all users of a server.

use std::{
    num::NonZeroU32,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::RateLimit;

/// Lets requests through in order of arrival, as fast as the limits allow.
#[derive(Debug)]
pub struct Limiter {
    buckets: Mutex<Buckets>,
    /// The holder of this lock is next. The lock is fair, and a waiter that is cancelled leaves no gap.
    turn: tokio::sync::Mutex<()>,
    /// Notified when tokens are returned.
    returned: Notify,
}

#[derive(Debug)]
struct Buckets {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
}

impl Limiter {
    /// None if there is no limit.
    pub fn new(limit: RateLimit) -> Option<Self> {
        let RateLimit { requests_per_minute: requests, tokens_per_minute: tokens } = limit;
        if requests.is_none() && tokens.is_none() {
            return None;
        }
        let now = Instant::now();
        let bucket = |per_minute| Bucket::new(per_minute, now);
        Some(Self {
            buckets: Mutex::new(Buckets { requests: requests.map(bucket), tokens: tokens.map(bucket) }),
            turn: tokio::sync::Mutex::new(()),
            returned: Notify::new(),
        })
    }

    /// Waits until a request with this estimate of tokens may be sent. Cancelling the wait takes nothing.
    pub async fn acquire(&self, tokens: u64) {
        let _turn = self.turn.lock().await;
        loop {
            let wait = self.lock().take(tokens, Instant::now());
            if wait.is_zero() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.returned.notified() => {}
            }
        }
    }

    /// Corrects the estimate of a request by what it used.
    pub fn settle(&self, estimated: u64, actual: u64) {
        if let Some(tokens) = &mut self.lock().tokens {
            tokens.level += estimated as f64 - actual as f64;
        }
        if actual < estimated {
            self.returned.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Buckets> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buckets {
    /// Takes one request with these tokens and returns zero, or takes nothing and returns how long to wait.
    fn take(&mut self, tokens: u64, now: Instant) -> Duration {
        let mut wanted = [(&mut self.requests, 1.0), (&mut self.tokens, tokens as f64)];
        let waits = wanted.iter_mut().map(|(bucket, amount)| match bucket {
            Some(bucket) => bucket.wait(*amount, now),
            None => Duration::ZERO,
        });
        let wait = waits.max().unwrap_or_default();
        if wait.is_zero() {
            for (bucket, amount) in wanted {
                if let Some(bucket) = bucket {
                    bucket.level -= amount;
                }
            }
        }
        wait
    }
}

/// Fills at a steady rate. It holds one second's worth: servers count in short windows too, and would reject a burst of
/// a whole minute's worth.
#[derive(Debug)]
struct Bucket {
    per_second: f64,
    capacity: f64,
    /// Below zero after a request larger than the capacity, or larger than its estimate.
    level: f64,
    at: Instant,
}

impl Bucket {
    fn new(per_minute: NonZeroU32, now: Instant) -> Self {
        let per_second = f64::from(per_minute.get()) / 60.0;
        let capacity = per_second.max(1.0);
        Self { per_second, capacity, level: capacity, at: now }
    }

    /// How long until this amount can be taken. An amount larger than the bucket waits until the bucket is full.
    fn wait(&mut self, amount: f64, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at);
        self.level = (self.level + passed.as_secs_f64() * self.per_second).min(self.capacity);
        self.at = now;
        let missing = amount.min(self.capacity) - self.level;
        // Less than a nanosecond's worth is a rounding error.
        match missing / self.per_second {
            seconds if seconds < 1e-9 => Duration::ZERO,
            seconds => Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn limiter(requests: u32, tokens: u32) -> Arc<Limiter> {
        let limit = RateLimit {
            requests_per_minute: NonZeroU32::new(requests),
            tokens_per_minute: NonZeroU32::new(tokens),
        };
        Arc::new(Limiter::new(limit).unwrap())
    }

    /// When each of these requests is sent, in milliseconds.
    async fn times(limiter: &Limiter, tokens: impl IntoIterator<Item = u64>) -> Vec<u128> {
        let start = Instant::now();
        let mut times = Vec::new();
        for tokens in tokens {
            limiter.acquire(tokens).await;
            times.push(start.elapsed().as_millis());
        }
        times
    }

    #[test]
    fn no_limit_needs_no_limiter() {
        assert!(Limiter::new(RateLimit::default()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_spread_over_the_minute() {
        assert_eq!(times(&limiter(60, 0), [0; 4]).await, [0, 1000, 2000, 3000]);
        assert_eq!(times(&limiter(30, 0), [0; 3]).await, [0, 2000, 4000]);
        // One second's worth may be sent at once.
        assert_eq!(times(&limiter(180, 0), [0; 4]).await, [0, 0, 0, 334]);
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_are_spread_over_the_minute() {
        assert_eq!(times(&limiter(0, 6000), [50, 50, 100, 10]).await, [0, 0, 1000, 1100]);
        // More than the bucket holds is sent when the bucket is full, and paid off afterwards.
        assert_eq!(times(&limiter(0, 6000), [300, 1]).await, [0, 2010]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_stricter_limit_decides() {
        assert_eq!(times(&limiter(6000, 60), [1, 1]).await, [0, 1000]);
        assert_eq!(times(&limiter(60, 600_000), [1, 1]).await, [0, 1000]);
    }

    #[tokio::test(start_paused = true)]
    async fn estimates_are_corrected_by_the_actual_usage() {
        let dear = limiter(0, 6000);
        dear.acquire(100).await;
        dear.settle(100, 300);
        assert_eq!(times(&dear, [100]).await, [3000]);
        let cheap = limiter(0, 6000);
        cheap.acquire(100).await;
        cheap.settle(100, 40);
        assert_eq!(times(&cheap, [60]).await, [0]);
    }

    #[tokio::test(start_paused = true)]
    async fn returned_tokens_wake_a_waiting_request() {
        let limiter = limiter(0, 60);
        limiter.acquire(600).await;
        let start = Instant::now();
        let waiting = tokio::spawn({
            let limiter = Arc::clone(&limiter);
            async move { limiter.acquire(1).await }
        });
        tokio::task::yield_now().await;
        limiter.settle(600, 0);
        waiting.await.unwrap();
        assert_eq!(start.elapsed().as_millis(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_keep_their_order_and_a_cancelled_one_takes_nothing() {
        let limiter = limiter(60, 0);
        limiter.acquire(0).await;
        let start = Instant::now();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for n in 0..4 {
            let (limiter, order) = (Arc::clone(&limiter), Arc::clone(&order));
            waiting.push(tokio::spawn(async move {
                limiter.acquire(0).await;
                order.lock().unwrap().push((n, start.elapsed().as_secs()));
            }));
            tokio::task::yield_now().await;
        }
        waiting[0].abort();
        waiting[2].abort();
        for task in waiting {
            let _ = task.await;
        }
        assert_eq!(*order.lock().unwrap(), [(1, 1), (3, 2)]);
    }
}
