//! A cache with a size limit that computes each value once, also for concurrent requests.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::OnceCell;

/// Values by key. The least recently used ones are evicted.
#[derive(Debug)]
pub(crate) struct Cache<K, V> {
    state: Mutex<State<K, V>>,
    most_bytes: usize,
}

#[derive(Debug)]
struct State<K, V> {
    slots: HashMap<K, Slot<V>>,
    bytes: usize,
    clock: u64,
}

#[derive(Debug)]
struct Slot<V> {
    cell: Arc<OnceCell<V>>,
    /// `None` while the value is being computed.
    bytes: Option<usize>,
    used: u64,
}

impl<K: Clone + Eq + Hash, V: Clone> Cache<K, V> {
    /// Keeps about `most_bytes` bytes.
    pub(crate) fn new(most_bytes: usize) -> Self {
        let state = State { slots: HashMap::new(), bytes: 0, clock: 0 };
        Self { state: Mutex::new(state), most_bytes }
    }

    /// The value of a key. If it is missing, the first caller computes it, with its size in bytes, and the
    /// others wait. If the first caller is cancelled or fails, the next one computes it.
    pub(crate) async fn get<E>(
        &self,
        key: &K,
        make: impl AsyncFnOnce() -> Result<(V, usize), E>,
    ) -> Result<V, E> {
        let cell = self.state().cell(key);
        let make = async || {
            let (value, bytes) = make().await?;
            self.state().account(key, bytes, self.most_bytes);
            Ok(value)
        };
        cell.get_or_try_init(make).await.cloned()
    }

    fn state(&self) -> MutexGuard<'_, State<K, V>> {
        // No code in this module panics while it holds the lock.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash, V> State<K, V> {
    fn cell(&mut self, key: &K) -> Arc<OnceCell<V>> {
        self.clock += 1;
        let fresh = || Slot { cell: Arc::default(), bytes: None, used: 0 };
        let slot = self.slots.entry(key.clone()).or_insert_with(fresh);
        slot.used = self.clock;
        Arc::clone(&slot.cell)
    }

    fn account(&mut self, key: &K, bytes: usize, most: usize) {
        // A cancelled computation is only referenced by the cache.
        self.slots
            .retain(|other, slot| other == key || slot.bytes.is_some() || Arc::strong_count(&slot.cell) > 1);
        let Some(slot) = self.slots.get_mut(key) else { return };
        self.bytes += bytes;
        self.bytes -= slot.bytes.replace(bytes).unwrap_or_default();
        while self.bytes > most {
            let made = self.slots.iter().filter_map(|(key, slot)| Some((slot.used, key, slot.bytes?)));
            let Some((_, key, bytes)) = made.min_by_key(|(used, ..)| *used) else { break };
            let key = key.clone();
            self.slots.remove(&key);
            self.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Counted(Cache<u32, u32>, AtomicUsize);

    impl Counted {
        fn new(most: usize) -> Self {
            Self(Cache::new(most), AtomicUsize::new(0))
        }

        async fn get(&self, key: u32) -> u32 {
            let make = async || {
                tokio::task::yield_now().await;
                self.1.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Infallible>((key * 10, 10))
            };
            self.0.get(&key, make).await.unwrap()
        }

        fn made(&self) -> usize {
            self.1.load(Ordering::Relaxed)
        }
    }

    #[tokio::test]
    async fn concurrent_requests_compute_a_value_once() {
        let cache = Counted::new(100);
        let all = futures_util::future::join_all((0..50).map(|_| cache.get(7))).await;
        assert!(all.iter().all(|value| *value == 70));
        assert_eq!(cache.made(), 1);
    }

    #[tokio::test]
    async fn the_least_recently_used_value_is_evicted() {
        let cache = Counted::new(20);
        for key in [1, 2, 1, 3, 1] {
            cache.get(key).await;
        }
        assert_eq!(cache.made(), 3);
        cache.get(2).await;
        assert_eq!(cache.made(), 4);
        assert!(cache.0.state().bytes <= 20);
    }

    #[tokio::test]
    async fn a_value_larger_than_the_cache_is_not_kept() {
        let cache = Counted::new(5);
        assert_eq!(cache.get(1).await, 10);
        let state = cache.0.state();
        assert_eq!((state.bytes, state.slots.len()), (0, 0));
    }

    #[tokio::test]
    async fn after_a_cancellation_the_next_caller_computes_the_value() {
        let cache = Counted::new(100);
        let never = cache.0.get(&1, async || std::future::pending::<Result<_, Infallible>>().await);
        assert!(futures_util::FutureExt::now_or_never(never).is_none());
        assert_eq!(cache.get(1).await, 10);
        assert!(cache.0.get(&2, async || Err("no")).await.is_err());
        cache.get(3).await;
        assert_eq!(cache.0.state().slots.len(), 2);
    }
}
