//! Creations whose caller is gone, and deletions that are refused.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU32, Ordering},
};

use async_trait::async_trait;
use secrecy::SecretString;

use super::{
    super::{
        backend::{CloudImage, SandboxSize, SandboxState, Wanted},
        image::ImageSource,
    },
    *,
};
use crate::{
    environment::Demand,
    guest::{DialError, GuestStream},
};

/// A vendor with trouble.
#[derive(Default)]
struct Trouble {
    /// The answer to all creations.
    creation: Option<CloudError>,
    creations: Arc<AtomicU32>,
    /// Whether a creation without an answer makes a sandbox.
    exists: std::sync::Mutex<bool>,
    deleted: Arc<std::sync::Mutex<Vec<String>>>,
    /// How often a sandbox is listed. Its deletion is refused.
    listed: AtomicU32,
}

#[async_trait]
impl Backend for Trouble {
    fn description(&self) -> String {
        String::new()
    }

    async fn check(&self) -> Result<(), CloudError> {
        Ok(())
    }

    fn refusal(&self, _demand: Demand) -> Option<String> {
        None
    }

    fn size(&self, _wanted: Wanted) -> Result<SandboxSize, String> {
        Err(String::new())
    }

    fn price(&self, _size: SandboxSize) -> f64 {
        0.0
    }

    fn max_lifetime(&self) -> Duration {
        Duration::MAX
    }

    fn shell_command(&self, _id: &str) -> String {
        String::new()
    }

    async fn image(&self, _source: &ImageSource) -> Result<CloudImage, CloudError> {
        unreachable!()
    }

    async fn create(&self, _plan: &SandboxPlan) -> Result<String, CloudError> {
        self.creations.fetch_add(1, Ordering::Relaxed);
        let error = self.creation.clone().unwrap();
        *self.exists.lock().unwrap() |= matches!(error, CloudError::Unanswered(_));
        Err(error)
    }

    async fn find(&self, _key: &str) -> Result<Option<String>, CloudError> {
        Ok(self.exists.lock().unwrap().then(|| "lost".to_owned()))
    }

    async fn state(&self, _id: &str) -> Result<SandboxState, CloudError> {
        unreachable!()
    }

    async fn dial(&self, _id: &str, _plan: &SandboxPlan) -> Result<GuestStream, DialError> {
        unreachable!()
    }

    async fn delete(&self, id: &str) -> Result<(), CloudError> {
        if id == "stays" {
            return Err(CloudError::Refused("not now".to_owned()));
        }
        *self.exists.lock().unwrap() = false;
        self.deleted.lock().unwrap().push(id.to_owned());
        Ok(())
    }

    async fn list(&self) -> Result<Vec<CloudSandbox>, CloudError> {
        let left = self.listed.load(Ordering::Relaxed);
        self.listed.store(left.saturating_sub(1), Ordering::Relaxed);
        let sandbox = || CloudSandbox { id: "stays".to_owned(), labels: HashMap::new() };
        Ok((left > 0).then(sandbox).into_iter().collect())
    }

    async fn keep(&self, _id: &str) -> Result<(), CloudError> {
        Ok(())
    }
}

fn work(backend: Trouble) -> CloudWork {
    CloudWork {
        backend: Box::new(backend),
        not_before: Mutex::new(Instant::now()),
        next: Mutex::new(Instant::now()),
        left: std::sync::Mutex::default(),
        deleted: std::sync::Mutex::default(),
    }
}

/// Creates a sandbox for a caller that goes after 100 milliseconds. Returns the error and how long it took.
async fn given_up(backend: Trouble) -> (String, Duration) {
    let plan = SandboxPlan {
        name: "one".to_owned(),
        image: "image".to_owned(),
        size: SandboxSize { cpu_millis: 1000, memory_mib: 1024, storage_mib: None },
        lifetime: Duration::from_secs(60),
        grace: Duration::from_secs(60),
        no_network: false,
        labels: HashMap::new(),
        token: SecretString::from("secret"),
    };
    let (work, began) = (work(backend), Instant::now());
    let (caller, gone) = oneshot::channel();
    let (waits, reasons) = watch::channel(String::new());
    let creation = work.create(&plan, began + Duration::from_secs(600), gone, &waits);
    let leave = async {
        sleep(Duration::from_millis(100)).await;
        drop(caller);
    };
    let (created, ()) = tokio::join!(creation, leave);
    let error = created.map(|created| created.id).unwrap_err();
    let waited = reasons.borrow().clone();
    assert!(waited.starts_with("the creation of its sandbox: "), "{waited}");
    (error.to_string(), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_busy_vendor_is_not_asked_for_a_caller_that_is_gone() {
    for retry_after in [None, Some(Duration::from_secs(200))] {
        let creations = Arc::default();
        let creation = Some(CloudError::Busy { text: "busy".to_owned(), retry_after });
        let backend = Trouble { creation, creations: Arc::clone(&creations), ..Trouble::default() };
        let (error, took) = given_up(backend).await;
        assert!(error.contains("its trial was cancelled"), "{error}");
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert_eq!(creations.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_an_attempt_may_have_made_is_deleted_for_a_caller_that_is_gone() {
    let deleted = Arc::default();
    let creation = Some(CloudError::Unanswered("no answer".to_owned()));
    let backend = Trouble { creation, deleted: Arc::clone(&deleted), ..Trouble::default() };
    let (error, took) = given_up(backend).await;
    assert!(error.contains("its trial was cancelled"), "{error}");
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(*deleted.lock().unwrap(), ["lost"]);
}

#[tokio::test(start_paused = true)]
async fn only_what_the_last_check_finds_is_reported() {
    let reported = ("stays".to_owned(), "not now".to_owned());
    for (listed, left) in [(1, vec![]), (CHECKS - 1, vec![]), (CHECKS, vec![reported])] {
        let work = work(Trouble { listed: AtomicU32::new(listed), ..Trouble::default() });
        work.deleted.lock().unwrap().insert("stays".to_owned());
        work.check_deleted().await;
        assert_eq!(work.take_left(), left, "listed {listed} times");
    }
}
