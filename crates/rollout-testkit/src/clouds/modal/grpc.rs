//! gRPC on the server's side: handlers for calls, without generated code.

use std::task::{Context, Poll};

use hyper::{Request as HttpRequest, Response as HttpResponse, body::Incoming};
use prost::Message;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    codegen::{Service, tokio_stream::Stream},
    server::Grpc,
};
use tonic_prost::ProstCodec;

/// The largest message of a client.
const MAX_MESSAGE: usize = 100 << 20;

/// A function that handles a call.
struct Handler<F>(F);

impl<Q, A, F, U> Service<Request<Q>> for Handler<F>
where
    F: FnMut(Request<Q>) -> U,
    U: Future<Output = Result<Response<A>, Status>>,
{
    type Response = Response<A>;
    type Error = Status;
    type Future = U;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> U {
        (self.0)(request)
    }
}

/// Answers a call with one request and one answer.
pub(super) async fn unary<Q, A, U>(
    request: HttpRequest<Incoming>,
    mut handle: impl FnMut(Q) -> U,
) -> HttpResponse<Body>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    U: Future<Output = Result<A, Status>>,
{
    let handler = Handler(|request: Request<Q>| {
        let answer = handle(request.into_inner());
        async { answer.await.map(Response::new) }
    });
    grpc::<Q, A>().unary(handler, request).await
}

/// Answers a call with a stream of answers.
pub(super) async fn server_stream<Q, A, U, S>(
    request: HttpRequest<Incoming>,
    mut handle: impl FnMut(Q) -> U,
) -> HttpResponse<Body>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    U: Future<Output = Result<S, Status>>,
    S: Stream<Item = Result<A, Status>> + Send + 'static,
{
    let handler = Handler(|request: Request<Q>| {
        let answer = handle(request.into_inner());
        async { answer.await.map(Response::new) }
    });
    grpc::<Q, A>().server_streaming(handler, request).await
}

/// Answers a call with a stream of requests.
pub(super) async fn client_stream<Q, A, U>(
    request: HttpRequest<Incoming>,
    mut handle: impl FnMut(Streaming<Q>) -> U,
) -> HttpResponse<Body>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    U: Future<Output = Result<A, Status>>,
{
    let handler = Handler(|request: Request<Streaming<Q>>| {
        let answer = handle(request.into_inner());
        async { answer.await.map(Response::new) }
    });
    grpc::<Q, A>().client_streaming(handler, request).await
}

/// Answers a call with an error.
pub(super) fn refused(status: Status) -> HttpResponse<Body> {
    status.into_http()
}

fn grpc<Q: Message + Default + 'static, A: Message + 'static>() -> Grpc<ProstCodec<A, Q>> {
    Grpc::new(ProstCodec::default()).max_decoding_message_size(MAX_MESSAGE)
}
