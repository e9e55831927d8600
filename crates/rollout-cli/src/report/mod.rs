//! The output of a job: its events as a live display, as lines, or as JSON.

mod board;
mod frame;
mod junit;
mod line;
mod summary;
mod table;
pub(crate) mod text;

#[cfg(test)]
mod tests;

use std::{
    io::{self, IsTerminal as _, Write},
    time::{Duration, Instant},
};

use anstream::{AutoStream, ColorChoice};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rollout::event::Event;
use tokio::sync::mpsc::UnboundedReceiver;

use board::Board;
pub(crate) use board::shown;
pub(crate) use junit::Junit;
use line::Detail;

use crate::terminal::Mode;
pub(crate) use summary::{columns, quoted};
pub(crate) use table::{Align, Row, Table, fits, lines as table, narrow};

/// The form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A live display that is redrawn.
    Live,
    /// Lines of text.
    Plain,
    /// One JSON event per line.
    Json,
}

impl Form {
    /// A live display if stdout is a terminal that supports it, else lines.
    pub(crate) fn for_people() -> Self {
        Self::choose(io::stdout().is_terminal(), |name| std::env::var(name).ok())
    }

    fn choose(terminal: bool, variable: impl Fn(&str) -> Option<String>) -> Self {
        let dumb = variable("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let ci = variable("CI").is_some_and(|value| !value.is_empty() && value != "false");
        if terminal && !dumb && !ci { Self::Live } else { Self::Plain }
    }
}

/// The minimum interval between two lines with metrics.
const METRICS_INTERVAL: Duration = Duration::from_secs(30);

/// Prints the events of a job to stdout.
pub(crate) struct Reporter {
    start: Instant,
    board: Board,
    screen: Screen,
    /// When metrics were last printed, relative to the start.
    metrics_at: Duration,
    junit: Option<Junit>,
}

enum Screen {
    Live {
        bar: ProgressBar,
        color: bool,
        due: Instant,
        /// The terminal mode without `^C`. None if stdin is not a terminal.
        _quiet: Option<Mode>,
    },
    Plain(Box<dyn Write + Send>),
    Json(Box<dyn Write + Send>),
}

enum Next {
    Event(Event),
    Draw,
    End,
}

impl Reporter {
    /// Creates a reporter that also collects a JUnit report if `junit` is given.
    pub(crate) fn new(form: Form, junit: Option<Junit>) -> Self {
        let screen = match form {
            Form::Live => {
                let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout_with_hz(10));
                bar.set_style(ProgressStyle::with_template("{msg}").expect("the template is a single key"));
                let color = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
                Screen::Live { bar, color, due: Instant::now(), _quiet: Mode::quiet().ok() }
            }
            Form::Plain => Screen::Plain(Box::new(AutoStream::auto(io::stdout()))),
            Form::Json => Screen::Json(Box::new(io::stdout())),
        };
        Self::on(screen, junit)
    }

    fn on(screen: Screen, junit: Option<Junit>) -> Self {
        Self { start: Instant::now(), board: Board::default(), screen, metrics_at: Duration::ZERO, junit }
    }

    /// Prints events until the job drops its sender, and returns the JUnit report.
    ///
    /// Writes block, so this must run on its own thread. It fails if the output is closed.
    pub(crate) fn run(
        mut self,
        mut events: UnboundedReceiver<Event>,
        runtime: &tokio::runtime::Handle,
    ) -> io::Result<Option<Junit>> {
        loop {
            let next = match self.screen {
                Screen::Live { due, .. } => runtime.block_on(async {
                    match tokio::time::timeout_at(due.into(), events.recv()).await {
                        Ok(Some(event)) => Next::Event(event),
                        Ok(None) => Next::End,
                        Err(_) => Next::Draw,
                    }
                }),
                Screen::Plain(_) | Screen::Json(_) => events.blocking_recv().map_or(Next::End, Next::Event),
            };
            match next {
                Next::Event(event) => self.show(&event, self.start.elapsed())?,
                Next::Draw => {}
                Next::End => {
                    // A job that fails sends no last event.
                    if let Screen::Live { bar, .. } = &self.screen {
                        bar.finish_and_clear();
                    }
                    return Ok(self.junit);
                }
            }
            self.draw();
        }
    }

    /// Prints an event. `now` counts from the start.
    fn show(&mut self, event: &Event, now: Duration) -> io::Result<()> {
        if let Some(junit) = &mut self.junit {
            junit.apply(event);
        }
        let detail = if matches!(self.screen, Screen::Live { .. }) { Detail::Trouble } else { Detail::Every };
        let text = match event {
            Event::JobFinished { result } => Some(summary::summary(result, &self.board, width())),
            _ => line::line(event, &self.board, detail),
        };
        self.board.apply(event, now);
        let metrics = self.metrics_line(event, now);
        match &mut self.screen {
            Screen::Json(out) => {
                let mut line = serde_json::to_vec(event)?;
                line.push(b'\n');
                out.write_all(&line)?;
                out.flush()
            }
            Screen::Plain(out) => {
                for line in text.iter().chain(&metrics) {
                    writeln!(out, "{line}")?;
                }
                out.flush()
            }
            Screen::Live { bar, color, .. } => {
                if let Event::JobFinished { .. } = event {
                    bar.finish_and_clear();
                }
                match text {
                    // The summary, and warnings after it.
                    Some(text) if bar.is_finished() => writeln!(AutoStream::auto(io::stdout()), "{text}"),
                    Some(text) => {
                        bar.println(colored(&text, *color));
                        Ok(())
                    }
                    None => Ok(()),
                }
            }
        }
    }

    /// Returns a line with the current metrics, if a trial ended and the interval has passed. A live display shows
    /// metrics all the time.
    fn metrics_line(&mut self, event: &Event, now: Duration) -> Option<String> {
        let is_due = now.saturating_sub(self.metrics_at) >= METRICS_INTERVAL;
        if !is_due
            || !matches!(self.screen, Screen::Plain(_))
            || !matches!(event, Event::TrialFinished { .. })
        {
            return None;
        }
        self.metrics_at = now;
        let metrics = frame::metrics(&self.board, usize::MAX)?;
        let Board { total, kind, .. } = &self.board;
        let (finished, trials) = (self.board.finished(), text::count(*total, board::unit(*kind)));
        Some(text::paint(text::DIM, &format!("metrics after {finished} of {trials}: {metrics}")))
    }

    /// Redraws the live display, if there is one and the interval has passed.
    fn draw(&mut self) {
        let now = Instant::now();
        if let Screen::Live { bar, color, due, .. } = &mut self.screen
            && *due <= now
            && self.board.total > 0
            && !bar.is_finished()
        {
            *due = now + frame::TICK;
            let (width, height) = terminal_size();
            self.board.look_at_images(height);
            let lines = frame::frame(&self.board, now - self.start, width, height);
            bar.set_message(colored(&lines.join("\n"), *color));
        }
    }
}

fn colored(text: &str, color: bool) -> String {
    if color { text.to_owned() } else { anstream::adapter::strip_str(text).to_string() }
}

/// Returns the width of lines: that of the terminal, or no limit if stdout is a file or a pipe.
pub(crate) fn width() -> usize {
    if io::stdout().is_terminal() { terminal_size().0 } else { usize::MAX }
}

/// Returns the columns and rows of the terminal. One column is not used, because a full line wraps on some terminals.
pub(crate) fn terminal_size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 1 && size.ws_row > 0 => (size.ws_col as usize - 1, size.ws_row as usize),
        _ => (79, 24),
    }
}
