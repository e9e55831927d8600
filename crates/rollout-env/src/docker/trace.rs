//! Formats BuildKit's trace of a build as readable lines.

use std::collections::HashMap;

use bollard::moby::buildkit::v1::StatusResponse;

/// Longer lines of output are cut here.
const MAX_LINE_BYTES: usize = 8 << 10;

/// The steps of a build that were reported so far.
#[derive(Debug, Default)]
pub(super) struct Trace {
    steps: HashMap<String, Step>,
    last: Option<usize>,
}

#[derive(Debug)]
struct Step {
    number: usize,
    named: bool,
    ended: bool,
    /// Output whose line is not complete yet.
    partial: Vec<u8>,
}

impl Trace {
    /// Formats an update as lines, each with the number of its step.
    pub(super) fn lines(&mut self, news: StatusResponse) -> String {
        let mut lines = String::new();
        for vertex in news.vertexes {
            let (number, first, ended) = {
                let step = self.step(&vertex.digest);
                let first = !step.named && (vertex.started.is_some() || vertex.cached);
                step.named |= first;
                let ended = !step.ended && (vertex.cached || vertex.completed.is_some());
                step.ended |= ended;
                (step.number, first, ended)
            };
            if first {
                self.tell(&mut lines, number, &vertex.name);
            }
            if ended {
                self.flush(&mut lines, &vertex.digest);
                let end = match (vertex.cached, vertex.error.as_str()) {
                    (_, error) if !error.is_empty() => format!("ERROR: {error}"),
                    (true, _) => "CACHED".to_owned(),
                    _ => "DONE".to_owned(),
                };
                self.tell(&mut lines, number, &end);
            }
        }
        for log in news.logs {
            let (number, complete) = {
                let step = self.step(&log.vertex);
                step.partial.extend(log.msg);
                let end = step.partial.iter().rposition(|byte| *byte == b'\n').map(|place| place + 1);
                let end = end.or((step.partial.len() > MAX_LINE_BYTES).then_some(step.partial.len()));
                (step.number, step.partial.drain(..end.unwrap_or(0)).collect::<Vec<u8>>())
            };
            for line in String::from_utf8_lossy(&complete).lines() {
                self.tell(&mut lines, number, line);
            }
        }
        for warning in news.warnings {
            let number = self.step(&warning.vertex).number;
            self.tell(&mut lines, number, &format!("WARN: {}", String::from_utf8_lossy(&warning.short)));
        }
        lines
    }

    fn step(&mut self, digest: &str) -> &mut Step {
        let number = self.steps.len() + 1;
        self.steps.entry(digest.to_owned()).or_insert(Step {
            number,
            named: false,
            ended: false,
            partial: Vec::new(),
        })
    }

    /// Writes an incomplete line.
    fn flush(&mut self, lines: &mut String, digest: &str) {
        let step = self.step(digest);
        let (number, rest) = (step.number, std::mem::take(&mut step.partial));
        for line in String::from_utf8_lossy(&rest).lines() {
            self.tell(lines, number, line);
        }
    }

    fn tell(&mut self, lines: &mut String, number: usize, text: &str) {
        // Steps run concurrently: an empty line separates their output.
        if self.last.replace(number).is_some_and(|last| last != number) {
            lines.push('\n');
        }
        lines.push_str(&format!("#{number} {text}\n"));
    }
}

#[cfg(test)]
mod tests {
    use bollard::moby::buildkit::v1::{Vertex, VertexLog};

    use super::*;

    fn vertex(digest: &str, name: &str) -> Vertex {
        Vertex {
            digest: digest.to_owned(),
            name: name.to_owned(),
            started: Some(Default::default()),
            ..Vertex::default()
        }
    }

    fn log(digest: &str, text: &str) -> VertexLog {
        VertexLog { vertex: digest.to_owned(), msg: text.as_bytes().to_vec(), ..VertexLog::default() }
    }

    #[test]
    fn steps_are_reported_once_with_their_output_in_whole_lines() {
        let mut trace = Trace::default();
        let mut text = String::new();
        let base = vertex("a", "[1/2] FROM debian");
        let run = vertex("b", "[2/2] RUN make");
        let done = |vertex: &Vertex| Vertex { completed: Some(Default::default()), ..vertex.clone() };
        let failed = Vertex { error: "exit code: 2".to_owned(), ..done(&run) };
        for news in [
            StatusResponse { vertexes: vec![base.clone()], ..Default::default() },
            StatusResponse { vertexes: vec![Vertex { cached: true, ..done(&base) }], ..Default::default() },
            StatusResponse {
                vertexes: vec![run.clone()],
                logs: vec![log("b", "cc ma")],
                ..Default::default()
            },
            StatusResponse { logs: vec![log("b", "in.c\nld ma")], ..Default::default() },
            StatusResponse { vertexes: vec![failed.clone()], ..Default::default() },
            StatusResponse { vertexes: vec![failed], ..Default::default() },
        ] {
            text.push_str(&trace.lines(news));
        }
        insta::assert_snapshot!(text, @"
        #1 [1/2] FROM debian
        #1 CACHED

        #2 [2/2] RUN make
        #2 cc main.c
        #2 ld ma
        #2 ERROR: exit code: 2
        ");
    }

    #[test]
    fn an_endless_line_does_not_grow_without_limit() {
        let mut trace = Trace::default();
        let mut written = 0;
        for _ in 0..100 {
            written += trace
                .lines(StatusResponse { logs: vec![log("a", &"x".repeat(1000))], ..Default::default() })
                .len();
        }
        assert!(written > 90_000);
        assert!(trace.steps["a"].partial.len() <= MAX_LINE_BYTES);
    }
}
