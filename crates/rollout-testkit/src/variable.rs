//! The addresses of the services of `scripts/with-services`, from the environment of the test.

/// The address of a service, from the environment of the test.
#[track_caller]
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "this test needs the services of `scripts/with-services` ({name} is not set); \
             run it as `scripts/with-services cargo nextest run …`"
        )
    })
}
