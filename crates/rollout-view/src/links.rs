//! The addresses of pages. They are the same when pages are served and when they are exported, and links between pages
//! are relative, so an export works from any place, and without a server.

use std::fmt;

use rollout_core::name::TrialId;
use rollout_record::{notes::NoteTag, saved::TrialStatus};

/// Where the form that chooses a comparison leads, below the root.
pub(crate) const COMPARE_FORM: &str = "compare.html";

/// The number of a cause in the job: one of failures, or one of unsolved trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CauseNumber {
    Failed(usize),
    Unsolved(usize),
}

/// Begins the numbers of causes of unsolved trials.
const UNSOLVED: &str = "unsolved-";

impl fmt::Display for CauseNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(number) => write!(f, "{number}"),
            Self::Unsolved(number) => write!(f, "{UNSOLVED}{number}"),
        }
    }
}

impl CauseNumber {
    /// Parses a number as it is displayed.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix(UNSOLVED) {
            Some(number) => number.parse().ok().map(Self::Unsolved),
            None => text.parse().ok().map(Self::Failed),
        }
    }
}

/// The order of trials, as of `rollout list`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum TrialSort {
    /// The order of the plan.
    #[default]
    Plan,
    Status,
    /// The lowest first.
    Reward,
    /// The longest first.
    Time,
    /// The most expensive first.
    Cost,
}

impl TrialSort {
    pub(crate) const ALL: [Self; 5] = [Self::Plan, Self::Status, Self::Reward, Self::Time, Self::Cost];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Status => "status",
            Self::Reward => "reward",
            Self::Time => "time",
            Self::Cost => "cost",
        }
    }

    /// What people choose.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Plan => "in the order of the job",
            Self::Status => "by status",
            Self::Reward => "lowest reward first",
            Self::Time => "longest first",
            Self::Cost => "most expensive first",
        }
    }
}

/// Which trials a list shows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TrialFilter {
    pub(crate) status: Option<TrialStatus>,
    pub(crate) agent: Option<String>,
    /// A part of the name of the task.
    pub(crate) text: String,
    /// A cause in the job.
    pub(crate) cause: Option<CauseNumber>,
    /// A tag of a person.
    pub(crate) tag: Option<NoteTag>,
    pub(crate) sort: TrialSort,
}

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SideName {
    pub(crate) job: String,
    pub(crate) agent: String,
}

impl SideName {
    /// The value in a form that chooses it.
    pub(crate) fn value(&self) -> String {
        format!("{}/{}", encoded(&self.job), encoded(&self.agent))
    }
}

/// A page or a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Jobs,
    Job { job: String, grid: usize },
    Trials { job: String, filter: TrialFilter, page: usize },
    Trial { job: String, trial: TrialId, page: usize },
    File { job: String, trial: TrialId, path: Vec<String>, page: usize },
    Raw { job: String, trial: TrialId, path: Vec<String>, extension: &'static str },
    Compare { left: SideName, right: SideName },
    Asset(&'static str),
}

/// How pages reach their readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// By the server, which also searches.
    Served,
    /// As files.
    Exported,
}

impl Address {
    /// Whether it is a file of a trial.
    pub(crate) fn is_file(&self) -> bool {
        matches!(self, Self::File { .. } | Self::Raw { .. })
    }

    /// The path below the root of all pages, with a query if pages are served.
    pub(crate) fn path(&self, delivery: Delivery) -> String {
        match self {
            Self::Jobs => "index.html".to_owned(),
            Self::Asset(name) => format!("assets/{name}"),
            Self::Job { job, grid } => format!("jobs/{}/{}", encoded(job), numbered("index", "grid", *grid)),
            Self::Trials { job, filter, page } => {
                let job = encoded(job);
                match delivery {
                    Delivery::Served => format!("jobs/{job}/trials.html{}", query(filter, *page)),
                    Delivery::Exported => {
                        let status = filter.status.map_or("all", TrialStatus::as_str);
                        let name = match (filter.cause, &filter.tag, &filter.agent) {
                            (Some(cause), ..) => format!("cause-{cause}"),
                            (None, Some(tag), _) => format!("tag-{}", encoded(tag.as_str())),
                            (None, None, Some(agent)) => format!("agent-{}-{status}", encoded(agent)),
                            (None, None, None) => status.to_owned(),
                        };
                        format!("jobs/{job}/trials-{name}-{page}.html")
                    }
                }
            }
            Self::Trial { job, trial, page } => {
                format!("{}/{}", trial_path(job, trial), numbered("index", "page", *page))
            }
            Self::File { job, trial, path, page } => {
                format!(
                    "{}/files/{}/{}",
                    trial_path(job, trial),
                    joined(path),
                    numbered("index", "page", *page)
                )
            }
            Self::Raw { job, trial, path, extension } => {
                format!("{}/files/{}/raw.{extension}", trial_path(job, trial), joined(path))
            }
            Self::Compare { left, right } => {
                format!("compare/{}/with/{}/index.html", left.value(), right.value())
            }
        }
    }

    /// The path that leads from this page to the root of all pages.
    pub(crate) fn root(&self, delivery: Delivery) -> String {
        let path = self.path(delivery);
        let path = path.split('?').next().unwrap_or_default();
        "../".repeat(path.matches('/').count())
    }
}

fn numbered(first: &str, other: &str, page: usize) -> String {
    if page <= 1 { format!("{first}.html") } else { format!("{other}-{page}.html") }
}

fn joined(path: &[String]) -> String {
    path.iter().map(|part| encoded(part)).collect::<Vec<_>>().join("/")
}

pub(crate) fn trial_path(job: &str, trial: &TrialId) -> String {
    let name = format!("{}__{}", trial.task, trial.attempt);
    format!(
        "jobs/{}/trials/{}/{}/{}",
        encoded(job),
        encoded(trial.agent.as_str()),
        encoded(trial.dataset.as_str()),
        encoded(&name)
    )
}

fn query(filter: &TrialFilter, page: usize) -> String {
    let mut parts = Vec::new();
    parts.extend(filter.status.map(|status| format!("status={}", status.as_str())));
    parts.extend(filter.agent.as_ref().map(|agent| format!("agent={}", encoded(agent))));
    parts.extend(filter.cause.map(|cause| format!("cause={cause}")));
    parts.extend(filter.tag.as_ref().map(|tag| format!("tag={}", encoded(tag.as_str()))));
    if filter.sort != TrialSort::Plan {
        parts.push(format!("sort={}", filter.sort.as_str()));
    }
    if !filter.text.is_empty() {
        parts.push(format!("text={}", encoded(&filter.text)));
    }
    if page > 1 {
        parts.push(format!("page={page}"));
    }
    if parts.is_empty() { String::new() } else { format!("?{}", parts.join("&")) }
}

/// Encodes a part of a path for a URL.
pub(crate) fn encoded(part: &str) -> String {
    use std::fmt::Write as _;
    part.bytes().fold(String::with_capacity(part.len()), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            text.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
        text
    })
}

/// Decodes a part of a path of a URL; None if it is not UTF-8, or not a single name.
pub(crate) fn decoded(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
        bytes.push((high * 16 + low) as u8);
    }
    let text = String::from_utf8(bytes).ok()?;
    let is_name = !text.is_empty() && text != "." && text != ".." && !text.contains(['/', '\0']);
    is_name.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_a_url() {
        for name in [
            "hello__1",
            "a b",
            "日本",
            "50%",
            "<script>alert(1)</script>".trim_end_matches("</script>"),
            "#?&",
            r"C:\..\x",
            "...",
            "%2e%2e",
            "a\nb",
        ] {
            assert_eq!(decoded(&encoded(name)).as_deref(), Some(name));
        }
    }

    #[test]
    fn a_part_of_a_path_cannot_leave_its_directory() {
        for part in ["", ".", "..", "%2e%2e", "a%2fb", "%2Fetc", "%00", "%ff", "%", "%2"] {
            assert_eq!(decoded(part), None, "{part}");
        }
    }

    #[test]
    fn lists_of_trials_have_files_of_their_own_in_an_export() {
        let path = |filter| {
            let address = Address::Trials { job: "job".to_owned(), filter, page: 1 };
            address.path(Delivery::Exported)
        };
        let of_agent = |agent: &str, status| TrialFilter {
            agent: Some(agent.to_owned()),
            status,
            ..TrialFilter::default()
        };
        let cause = |cause| TrialFilter { cause: Some(cause), ..TrialFilter::default() };
        let paths = [
            of_agent("a", None),
            of_agent("a", Some(TrialStatus::Failed)),
            of_agent("a-failed", None),
            cause(CauseNumber::Failed(2)),
            cause(CauseNumber::Unsolved(2)),
            TrialFilter::default(),
        ];
        assert_eq!(
            paths.map(path),
            ["agent-a-all", "agent-a-failed", "agent-a-failed-all", "cause-2", "cause-unsolved-2", "all"]
                .map(|name| format!("jobs/job/trials-{name}-1.html"))
        );
    }

    #[test]
    fn links_lead_back_to_the_root() {
        assert_eq!(Address::Jobs.root(Delivery::Served), "");
        let job = Address::Job { job: "a/b".to_owned(), grid: 2 };
        assert_eq!(job.path(Delivery::Served), "jobs/a%2Fb/grid-2.html");
        assert_eq!(job.root(Delivery::Exported), "../../");
    }
}
