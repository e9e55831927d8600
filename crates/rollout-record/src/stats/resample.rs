//! Where resampling takes its numbers from.

/// A source of numbers below its argument, the same for the same seed.
///
/// Whatever resamples takes such a source, so the same numbers can be given to another program.
///
/// ```
/// let (mut one, mut other) = (rollout::stats::seeded(7), rollout::stats::seeded(7));
/// assert!((0..100).all(|_| one(10) == other(10)));
/// ```
pub fn seeded(seed: u64) -> impl FnMut(usize) -> usize {
    let mut random = fastrand::Rng::with_seed(seed);
    move |below| random.usize(..below)
}
