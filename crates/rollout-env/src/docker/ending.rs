//! Finds out why a container no longer runs.

use std::{collections::HashMap, time::Duration};

use bollard::{models::ContainerState, query_parameters::EventsOptions};
use futures_util::StreamExt as _;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{Engine, failure};
use crate::{environment::EnvironmentError, guest::ContainerEnd};

/// A container's streams close a moment before the engine reports its end.
const END_PATIENCE: Duration = Duration::from_secs(3);

/// The interval of the polls meanwhile.
const POLL: Duration = Duration::from_millis(50);

/// Past events are sent at once; after this much silence there are no more.
const EVENT_SILENCE: Duration = Duration::from_millis(500);

/// The longest time to read events.
const EVENT_PATIENCE: Duration = Duration::from_secs(5);

/// Why a container does not run; `None` if it runs.
pub(super) async fn why_ended(engine: &Engine, name: &str) -> Option<EnvironmentError> {
    let lost = |text: String| Some(EnvironmentError::Lost(text));
    let patience = Instant::now() + END_PATIENCE;
    let state = loop {
        let state = match engine.api().inspect_container(name, None).await {
            Ok(found) => found.state?,
            Err(error) if failure::is_missing(&error) => {
                return lost("the container was removed from outside".to_owned());
            }
            Err(error) => return lost(format!("the engine does not answer: {}", failure::words(&error))),
        };
        if !state.running.unwrap_or(false) {
            break state;
        }
        if Instant::now() > patience {
            return None;
        }
        sleep(POLL).await;
    };
    Some(match state.error.as_deref() {
        Some(error) if !error.is_empty() => EnvironmentError::Lost(format!(
            "the container ended with exit code {}: {error}",
            state.exit_code.unwrap_or(0)
        )),
        _ => end_of(engine, name, &state).await.into_error(),
    })
}

async fn end_of(engine: &Engine, name: &str, state: &ContainerState) -> ContainerEnd {
    ContainerEnd {
        exit_code: state.exit_code.unwrap_or(0),
        out_of_memory: state.oom_killed.unwrap_or(false),
        memory_is_certain: engine.facts().cgroup_version == "1",
        events: events(engine, name).await,
    }
}

/// The events of a container that the engine still has.
async fn events(engine: &Engine, name: &str) -> Vec<String> {
    let filters = HashMap::from([
        ("container".to_owned(), vec![name.to_owned()]),
        ("type".to_owned(), vec!["container".to_owned()]),
    ]);
    // With a start time in the past, the engine first sends the events that it still has.
    let options = EventsOptions { since: Some("1".to_owned()), until: None, filters: Some(filters) };
    let mut news = std::pin::pin!(engine.api().events(Some(options)));
    let end = Instant::now() + EVENT_PATIENCE;
    let mut events = Vec::new();
    while let Ok(Ok(Some(Ok(event)))) = timeout_at(end, timeout(EVENT_SILENCE, news.next())).await {
        events.extend(event.action);
    }
    events
}
