//! Counts of the steps of a trajectory.

/// Counts the steps of a trajectory, and records its last reward and its first error.
///
/// ```
/// let mut steps = rollout::export::eval_log::Steps::default();
/// steps.environment(0.0, None);
/// steps.agent(Some("TimeoutError"));
/// steps.environment(1.0, Some("ValueError"));
/// assert_eq!((steps.n_steps(), steps.n_agent_steps(), steps.n_env_steps()), (3, 1, 2));
/// assert_eq!((steps.reward(), steps.error_type()), (1.0, Some("TimeoutError")));
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Steps {
    agent: u64,
    environment: u64,
    reward: f64,
    error_type: Option<String>,
}

impl Steps {
    /// Adds an agent step, with the type of its error if it failed.
    pub fn agent(&mut self, error_type: Option<&str>) {
        self.agent += 1;
        self.error(error_type);
    }

    /// Adds an environment step. The initial observation of an episode is one.
    pub fn environment(&mut self, reward: f64, error_type: Option<&str>) {
        self.environment += 1;
        self.reward = reward;
        self.error(error_type);
    }

    fn error(&mut self, error_type: Option<&str>) {
        if self.error_type.is_none() {
            self.error_type = error_type.map(str::to_owned);
        }
    }

    /// The number of steps.
    pub fn n_steps(&self) -> u64 {
        self.agent + self.environment
    }

    /// The number of agent steps.
    pub fn n_agent_steps(&self) -> u64 {
        self.agent
    }

    /// The number of environment steps.
    pub fn n_env_steps(&self) -> u64 {
        self.environment
    }

    /// The reward of the last environment step; zero if there is none.
    pub fn reward(&self) -> f64 {
        self.reward
    }

    /// The type of the first error of the agent or the environment.
    pub fn error_type(&self) -> Option<&str> {
        self.error_type.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trajectory: an observation, then actions and their results.
    fn trajectory(actions: &[(Option<&str>, f64, Option<&str>)]) -> Steps {
        let mut steps = Steps::default();
        steps.environment(0.0, None);
        for (agent, reward, environment) in actions {
            steps.agent(*agent);
            steps.environment(*reward, *environment);
        }
        steps
    }

    #[test]
    fn the_first_observation_is_a_step_of_the_environment() {
        let one = trajectory(&[(None, 1.0, None)]);
        assert_eq!((one.n_agent_steps(), one.n_env_steps(), one.n_steps()), (1, 2, 3));
        let three = trajectory(&[(None, 0.0, None); 3]);
        assert_eq!((three.n_agent_steps(), three.n_env_steps(), three.n_steps()), (3, 4, 7));
    }

    #[test]
    fn the_last_reward_counts_and_not_the_best() {
        assert_eq!(trajectory(&[(None, 1.0, None), (None, 0.25, None)]).reward(), 0.25);
        assert_eq!(Steps::default().reward(), 0.0);
    }

    #[test]
    fn the_first_error_of_the_agent_or_the_environment_counts() {
        assert_eq!(trajectory(&[(None, 0.0, None)]).error_type(), None);
        assert_eq!(trajectory(&[(Some("A"), 0.0, Some("B"))]).error_type(), Some("A"));
        assert_eq!(trajectory(&[(None, 0.0, Some("B")), (Some("A"), 0.0, None)]).error_type(), Some("B"));
    }
}
