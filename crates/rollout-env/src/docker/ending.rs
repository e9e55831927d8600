//! Finds out why a container no longer runs.

use std::{collections::HashMap, time::Duration};

use bollard::{models::ContainerState, query_parameters::EventsOptions};
use futures_util::StreamExt as _;
use tokio::time::{Instant, sleep, timeout};

use super::{Engine, failure};
use crate::{environment::EnvironmentError, guest::ContainerEnd};

/// A container's streams close before the engine reports its end; a busy engine takes seconds.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// The interval of the polls meanwhile.
const POLL: Duration = Duration::from_millis(50);

/// How long a busy engine may take to report the end as an event. An engine that was restarted has lost the event, so
/// this is also the delay of that case.
const EVENT_PATIENCE: Duration = Duration::from_secs(10);

/// How long after the end an engine may still report that the memory ran out.
const CAUSE_PATIENCE: Duration = Duration::from_secs(2);

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
            Err(error) if failure::is_unreadable(&error) && Instant::now() < patience => {
                sleep(POLL).await;
                continue;
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
    let mut end = ContainerEnd {
        exit_code: state.exit_code.unwrap_or(0),
        out_of_memory: state.oom_killed.unwrap_or(false),
        memory_is_certain: engine.facts().cgroup_version == "1" && !engine.is_podman(),
        events: Vec::new(),
    };
    add_events(&mut end, engine, name).await;
    end
}

/// Adds the events of a container that the engine still has, until they explain its end.
async fn add_events(end: &mut ContainerEnd, engine: &Engine, name: &str) {
    let filters = HashMap::from([
        ("container".to_owned(), vec![name.to_owned()]),
        ("type".to_owned(), vec!["container".to_owned()]),
    ]);
    // With a start time in the past, the engine first sends the events that it still has.
    let options = EventsOptions { since: Some("1".to_owned()), until: None, filters: Some(filters) };
    let mut news = std::pin::pin!(engine.api().events(Some(options)));
    while !end.is_explained() {
        let patience = if end.has_ended() { CAUSE_PATIENCE } else { EVENT_PATIENCE };
        let Ok(Some(Ok(event))) = timeout(patience, news.next()).await else { return };
        end.events.extend(event.action);
    }
}
