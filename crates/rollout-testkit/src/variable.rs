//! Where the services of `scripts/with-services` are, from the environment of the test.

/// What a service is reached by, from the environment of the test.
#[track_caller]
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "this test needs the services of `scripts/with-services` ({name} is not set); \
             run it as `scripts/with-services cargo nextest run …`"
        )
    })
}
