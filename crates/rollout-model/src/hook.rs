//! Async closures that can be stored and called on any thread.

use std::future::Future;

use futures_util::future::BoxFuture;

/// An async closure that can be stored: `async |state| …`, `async move |state| …` if it captures something, or the name
/// of an async function.
///
/// Captured values are cloned for each call, so put large values in an [`Arc`](std::sync::Arc). The trait is
/// implemented for every suitable closure; there is nothing to implement by hand.
#[diagnostic::on_unimplemented(
    message = "this closure cannot be stored and called on any thread",
    note = "write `async |…| …`; captured values must be `Clone + Send + Sync + 'static`, and values that are used after an `await` must be `Send`"
)]
pub trait AsyncHook<'a, Arguments, T>: Send + Sync + 'static {
    /// Calls the closure.
    fn run(&self, arguments: Arguments) -> BoxFuture<'a, T>;
}

// A future that borrows from its closure cannot be required to be `Send` in a bound; one that owns a copy can.
macro_rules! closures_are_hooks {
    ($($argument:ident: $type:ident),*) => {
        impl<'a, F, Fut, T, $($type),*> AsyncHook<'a, ($($type,)*), T> for F
        where
            F: FnOnce($($type),*) -> Fut + Clone + Send + Sync + 'static,
            Fut: Future<Output = T> + Send + 'a,
        {
            fn run(&self, ($($argument,)*): ($($type,)*)) -> BoxFuture<'a, T> {
                Box::pin(self.clone()($($argument),*))
            }
        }
    };
}
closures_are_hooks!(a: A);
closures_are_hooks!(a: A, b: B);
closures_are_hooks!(a: A, b: B, c: C);
