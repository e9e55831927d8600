//! Random numbers for resampling.

/// Returns a source of random numbers below its argument, the same for the same seed.
///
/// Resampling functions take such a source, so that another program can use the same numbers.
///
/// ```
/// let (mut one, mut other) = (rollout::stats::seeded(7), rollout::stats::seeded(7));
/// assert!((0..100).all(|_| one(10) == other(10)));
/// ```
pub fn seeded(seed: u64) -> impl FnMut(usize) -> usize {
    let mut random = fastrand::Rng::with_seed(seed);
    move |below| random.usize(..below)
}
