//! The environments of a trial, and what they cost together.

use std::{
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
};

use rollout_env::{Environment, EnvironmentError, EnvironmentSpec, Provider};

/// The costs of a trial, of all its tries, in US dollars. Costs are reported when they become known, so that the budget
/// also has those of trials without a result.
#[derive(Clone)]
pub struct TrialCosts(Arc<SharedCosts>);

struct SharedCosts {
    sums: Mutex<CostSums>,
    report: Box<dyn Fn(f64) + Send + Sync>,
}

#[derive(Default)]
struct CostSums {
    environments: f64,
    /// The models of tries that failed.
    failed_tries: Option<f64>,
}

impl std::fmt::Debug for TrialCosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TrialCosts").field(&self.environments()).finish()
    }
}

impl TrialCosts {
    /// No costs. `report` receives the costs of all environments that have ended, each time one ends.
    pub fn new(report: impl Fn(f64) + Send + Sync + 'static) -> Self {
        Self(Arc::new(SharedCosts { sums: Mutex::default(), report: Box::new(report) }))
    }

    /// Adds an environment that has ended.
    pub(super) fn add_environment(&self, dollars: f64) {
        let mut sums = self.sums();
        sums.environments += dollars;
        let all = sums.environments;
        drop(sums);
        if dollars > 0.0 {
            (self.0.report)(all);
        }
    }

    /// Adds the models of a try that failed and is followed by another.
    pub(super) fn add_failed_try(&self, models: Option<f64>) {
        if let Some(dollars) = models {
            *self.sums().failed_tries.get_or_insert(0.0) += dollars;
        }
    }

    /// The environments that have ended.
    pub(super) fn environments(&self) -> f64 {
        self.sums().environments
    }

    /// The models of all tries, if those of the last try cost this; `None` if no cost is known.
    pub(super) fn models(&self, last_try: Option<f64>) -> Option<f64> {
        match (self.sums().failed_tries, last_try) {
            (Some(earlier), Some(last)) => Some(earlier + last),
            (earlier, last) => last.or(earlier),
        }
    }

    fn sums(&self) -> std::sync::MutexGuard<'_, CostSums> {
        self.0.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An environment whose cost is counted when it ends, in whatever way.
pub(super) struct RentedEnvironment {
    /// `None` once it is taken.
    environment: Option<Box<dyn Environment>>,
    costs: TrialCosts,
}

impl RentedEnvironment {
    /// Starts an environment.
    pub(super) async fn create(
        provider: &dyn Provider,
        spec: EnvironmentSpec<'_>,
        costs: &TrialCosts,
    ) -> Result<Self, EnvironmentError> {
        Ok(Self::new(provider.create(spec).await?, costs))
    }

    /// Starts an environment with the files of a preserved one.
    pub(super) async fn create_from(
        provider: &dyn Provider,
        place: &str,
        spec: EnvironmentSpec<'_>,
        costs: &TrialCosts,
    ) -> Result<Self, EnvironmentError> {
        Ok(Self::new(provider.create_from(place, spec).await?, costs))
    }

    fn new(environment: Box<dyn Environment>, costs: &TrialCosts) -> Self {
        Self { environment: Some(environment), costs: costs.clone() }
    }

    /// Counts the cost, and returns the environment, to be removed or preserved.
    pub(super) fn give_up(mut self) -> Box<dyn Environment> {
        self.count();
        self.environment.take().expect("it is taken only here")
    }

    fn count(&self) {
        if let Some(environment) = &self.environment {
            self.costs.add_environment(environment.cost());
        }
    }
}

impl Deref for RentedEnvironment {
    type Target = dyn Environment;

    fn deref(&self) -> &Self::Target {
        &**self.environment.as_ref().expect("it is taken with the last owner")
    }
}

impl Drop for RentedEnvironment {
    fn drop(&mut self) {
        self.count();
    }
}
