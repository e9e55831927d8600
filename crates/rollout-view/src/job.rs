//! A job in memory: a few numbers of each trial, updated while the job runs.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    fs,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use jiff::Timestamp;
use rollout_core::{
    display::count,
    event::ModelProgress,
    name::{TrialId, TrialIndex},
    result::{ErrorType, Totals, TrialSummary},
    statistics::Figures,
};
use rollout_record::{
    causes::{CauseGroup, CauseGroups, TrialCause},
    layout::JobDir,
    notes::{JobNotes, NoteTag, TagExclusion, TrialNotes},
    rows,
    saved::{ConversationPages, SavedError, SavedJob, SavedTrial, TrialStatus, live::LiveUsage},
    stats::report::{Report, ReportData, ReportTask},
};

use crate::{error::ViewError, links::CauseNumber, options::ViewOptions};

/// How many trials without a result are looked up to find those that run. Trials start in the order of the plan, so
/// those that run are among the first without a result.
const MAX_LOOKUPS: usize = 2_000;

/// How many conversations stay in memory, as the places of their messages.
const MAX_CONVERSATIONS: usize = 4;

/// How many unsolved trials are looked at for their causes. Each takes a file, or a part of one.
pub(crate) const MAX_EVIDENCE: usize = 2_000;

/// How many of them a request looks at. The next requests look at the others.
pub(crate) const EVIDENCE_PER_REQUEST: usize = 200;

/// The size and the time of a file.
type FileStamp = Option<(u64, SystemTime)>;

fn file_stamp(path: &Path) -> FileStamp {
    let file = fs::metadata(path).ok()?;
    Some((file.len(), file.modified().ok()?))
}

/// The state of the files of a job. If it is the same, the job is the same.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct JobStamp {
    journal: FileStamp,
    notes: FileStamp,
    /// When trials were added to the directories of agents and datasets.
    sections: Vec<Option<SystemTime>>,
    is_running: bool,
}

impl JobStamp {
    /// The state of what the line of a job in the list depends on.
    pub(crate) fn of_line(path: &Path) -> Self {
        let dir = JobDir::new(path);
        Self {
            journal: file_stamp(&dir.journal()),
            notes: file_stamp(&dir.notes()),
            sections: Vec::new(),
            is_running: dir.is_running(),
        }
    }
}

/// A conversation of which the places of messages are known, and the state of its files.
type KnownConversation = (TrialIndex, Vec<(FileStamp, PathBuf)>, Option<Arc<ConversationPages>>);

/// A job that is shown.
#[derive(Debug)]
pub(crate) struct JobView {
    /// The name of its directory.
    pub(crate) name: String,
    /// Its directory for commands that people copy.
    pub(crate) given: PathBuf,
    pub(crate) saved: SavedJob,
    stamp: JobStamp,
    /// By the index in the plan.
    summaries: Vec<Option<TrialSummary>>,
    running: HashSet<u64>,
    /// What running trials used of their models.
    usage: RefCell<HashMap<u64, LiveUsage>>,
    failed_causes: CauseGroups,
    unsolved_causes: CauseGroups,
    /// The unsolved trials whose causes were not read yet.
    unread_causes: BTreeSet<u64>,
    /// How many were read.
    read_causes: usize,
    options: ViewOptions,
    notes: JobNotes,
    /// Why the notes cannot be read.
    notes_problem: Option<String>,
    /// The trials of the plan that have notes.
    noted: HashMap<u64, TrialNotes>,
    /// The trials that rates leave out because of their tags.
    excluded: HashSet<u64>,
    conversations: RefCell<VecDeque<KnownConversation>>,
    figures: OnceLock<Vec<Figures>>,
    totals: OnceLock<Totals>,
}

/// A line of the list of jobs.
#[derive(Debug, Clone)]
pub(crate) struct JobLine {
    pub(crate) name: String,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) status: &'static str,
    pub(crate) planned: u64,
    pub(crate) finished: u64,
    pub(crate) failed: u64,
    pub(crate) pass_rate: Option<f64>,
    pub(crate) cost: Option<f64>,
    pub(crate) agents: Vec<String>,
    pub(crate) datasets: Vec<String>,
}

impl JobView {
    pub(crate) fn open(
        name: String,
        path: PathBuf,
        given: PathBuf,
        options: ViewOptions,
    ) -> Result<Self, SavedError> {
        let (saved, trials) = read(path)?;
        let mut job = Self {
            name,
            given,
            saved,
            stamp: JobStamp::default(),
            summaries: Vec::new(),
            running: HashSet::new(),
            usage: RefCell::default(),
            failed_causes: CauseGroups::default(),
            unsolved_causes: CauseGroups::default(),
            unread_causes: BTreeSet::new(),
            read_causes: 0,
            options,
            notes: JobNotes::default(),
            notes_problem: None,
            noted: HashMap::new(),
            excluded: HashSet::new(),
            conversations: RefCell::default(),
            figures: OnceLock::new(),
            totals: OnceLock::new(),
        };
        job.stamp = job.current_stamp();
        job.replace(trials);
        job.read_notes();
        job.find_running();
        Ok(job)
    }

    /// Reads what was added since the last update.
    pub(crate) fn update(&mut self) -> Result<(), SavedError> {
        let stamp = self.current_stamp();
        if stamp == self.stamp {
            return Ok(());
        }
        match self.saved.update()? {
            None => {
                let (saved, trials) = read(self.saved.path())?;
                self.saved = saved;
                self.replace(trials);
                // The indexes of trials have changed.
                self.read_notes();
            }
            Some(added) => {
                for index in added {
                    if let Some(trial) = self.saved.trial(index)? {
                        self.add(&trial);
                    }
                }
            }
        }
        if stamp.notes != self.stamp.notes {
            self.read_notes();
        }
        self.find_running();
        self.stamp = stamp;
        (self.figures, self.totals) = (OnceLock::new(), OnceLock::new());
        Ok(())
    }

    /// The state of the files now.
    fn current_stamp(&self) -> JobStamp {
        let modified = |path: &Path| fs::metadata(path).and_then(|entry| entry.modified()).ok();
        let dir = self.saved.path();
        let sections = self.saved.groups().map(|(agent, dataset)| modified(&dir.join(agent).join(dataset)));
        JobStamp { sections: sections.collect(), ..JobStamp::of_line(dir) }
    }

    /// Takes the trials of a job that was read as a whole.
    fn replace(&mut self, trials: Vec<(TrialIndex, ReadTrial)>) {
        self.summaries = vec![None; self.saved.planned() as usize];
        (self.failed_causes, self.unsolved_causes) = (CauseGroups::default(), CauseGroups::default());
        self.unread_causes.clear();
        self.read_causes = 0;
        trials.into_iter().for_each(|(index, trial)| self.put(index, trial));
    }

    fn add(&mut self, trial: &SavedTrial) {
        // The trial ran again, perhaps with another outcome.
        if self.summary(trial.index).is_some() {
            self.failed_causes.remove(trial.index);
            self.unsolved_causes.remove(trial.index);
            self.unread_causes.remove(&trial.index.0);
        }
        let error = trial.result.error.as_ref().map(|error| (error.kind, error.message.as_str()));
        self.put(trial.index, ReadTrial::new(TrialSummary::from(&trial.result), error));
    }

    fn put(&mut self, index: TrialIndex, trial: ReadTrial) {
        if let Some(place) = self.summaries.get_mut(index.0 as usize) {
            *place = Some(trial.summary);
        }
        if TrialStatus::of_summary(&trial.summary) == TrialStatus::Unsolved {
            self.unread_causes.insert(index.0);
        }
        if let (Some(cause), Some(id)) = (trial.cause, self.saved.id(index)) {
            self.failed_causes.add(cause, index, id);
        }
    }

    /// Reads why trials are unsolved, at most so many of them, for pages that show it. The list of jobs does not.
    ///
    /// Trials that cannot be read are in no group, and are not tried again.
    pub(crate) fn read_causes(&mut self, most: usize) -> Result<(), SavedError> {
        let room = MAX_EVIDENCE.saturating_sub(self.read_causes).min(most);
        let indexes: Vec<u64> = self.unread_causes.iter().copied().take(room).collect();
        if indexes.is_empty() {
            return Ok(());
        }
        // Whole trials may have large rows, so only their causes stay in memory.
        let trials = self.saved.trials_of(indexes.iter().copied().map(TrialIndex))?.filter_map(Result::ok);
        let causes: Vec<_> = trials
            .map(|trial| {
                let is_rollout = self.saved.task(&trial).example_id.is_some();
                let cause = self.saved.evidence(&trial).unwrap_or_else(|| TrialCause::unknown(is_rollout));
                (cause, trial.index, trial.id)
            })
            .collect();
        self.read_causes += indexes.len();
        for index in &indexes {
            self.unread_causes.remove(index);
        }
        for (cause, index, id) in causes {
            self.unsolved_causes.add(cause, index, id);
        }
        Ok(())
    }

    /// Reads the notes. If they are damaged, the job is shown without them.
    fn read_notes(&mut self) {
        (self.notes, self.notes_problem) = match JobNotes::read(&JobDir::new(self.saved.path())) {
            Ok(notes) => (notes, None),
            Err(error) => (JobNotes::default(), Some(rollout_core::text::chain(&error))),
        };
        let noted = self
            .notes
            .trials()
            .filter_map(|(trial, notes)| Some((self.saved.index_of(trial)?.0, notes.clone())));
        self.noted = noted.collect();
        let excluded = &self.options.excluded_tags;
        let is_excluded = |notes: &TrialNotes| excluded.iter().any(|tag| notes.tags.contains(tag));
        self.excluded =
            self.noted.iter().filter(|(_, notes)| is_excluded(notes)).map(|(index, _)| *index).collect();
    }

    pub(crate) fn index(&self, trial: &TrialId) -> Option<TrialIndex> {
        self.saved.index(trial.agent.as_str(), trial.dataset.as_str(), trial.task.as_str(), trial.attempt)
    }

    /// What people noted about a trial.
    pub(crate) fn notes(&self, index: TrialIndex) -> Option<&TrialNotes> {
        self.noted.get(&index.0)
    }

    pub(crate) fn notes_problem(&self) -> Option<&str> {
        self.notes_problem.as_deref()
    }

    /// The tags of the job's trials, each with their number.
    pub(crate) fn tags(&self) -> BTreeMap<&NoteTag, u64> {
        let mut tags = BTreeMap::new();
        for tag in self.noted.values().flat_map(|notes| &notes.tags) {
            *tags.entry(tag).or_default() += 1;
        }
        tags
    }

    /// The trials that rates leave out.
    pub(crate) fn exclusion(&self) -> TagExclusion {
        TagExclusion::new(&self.options.excluded_tags, self.notes.clone())
    }

    /// Whether rates leave out a trial.
    pub(crate) fn is_excluded(&self, index: TrialIndex) -> bool {
        self.excluded.contains(&index.0)
    }

    /// Says which trials rates leave out; None if there are none.
    pub(crate) fn excluded_note(&self) -> Option<String> {
        let tags: Vec<&str> = self.options.excluded_tags.iter().map(NoteTag::as_str).collect();
        let trials = count(self.excluded.len() as u64, "trial");
        (!tags.is_empty())
            .then(|| format!("{trials} with the tag {} left out of rates and charts", tags.join(" or ")))
    }

    /// The places of the messages of a trial, finished or not; None if there are none.
    pub(crate) fn conversation(
        &self,
        index: TrialIndex,
        trial: &TrialId,
        saved: Option<&SavedTrial>,
    ) -> Result<Option<Arc<ConversationPages>>, ViewError> {
        let dir = JobDir::new(self.saved.path()).trial(trial);
        let paths = match saved {
            None => {
                let step = dir.current_step();
                vec![step.live_conversation(), step.trajectory(), step.calls()]
            }
            Some(saved) if self.saved.task(saved).example_id.is_none() => self.saved.trajectories(saved),
            Some(_) => vec![rows::file_in(&self.saved.section(trial.agent.as_str(), trial.dataset.as_str()))],
        };
        let stamps: Vec<_> = paths.into_iter().map(|path| (file_stamp(&path), path)).collect();
        let mut conversations = self.conversations.borrow_mut();
        let known = conversations.iter().find(|(known, of, _)| (*known, of) == (index, &stamps));
        if let Some((.., pages)) = known {
            return Ok(pages.clone());
        }
        let pages = match saved {
            Some(saved) => self.saved.conversation_pages(saved)?,
            None => match (self.saved.live_conversation_pages(trial)?, self.options.live_messages) {
                (None, Some(read)) => {
                    let failed = |source| ViewError::File { name: dir.path().display().to_string(), source };
                    let messages = read(self.saved.path(), &dir).map_err(failed)?;
                    ConversationPages::of_messages(messages)
                }
                (pages, _) => pages,
            },
        };
        let pages = pages.map(Arc::new);
        conversations.retain(|(known, ..)| *known != index);
        // Without a file, nothing would show that the conversation has changed.
        if stamps.iter().any(|(stamp, _)| stamp.is_some()) {
            conversations.truncate(MAX_CONVERSATIONS - 1);
            conversations.push_front((index, stamps, pages.clone()));
        }
        Ok(pages)
    }

    fn find_running(&mut self) {
        self.running.clear();
        if !self.saved.is_running() {
            return;
        }
        let dir = JobDir::new(self.saved.path());
        let missing = self.summaries.iter().zip(0_u64..).filter(|(summary, _)| summary.is_none());
        let running = missing.take(MAX_LOOKUPS).map(|(_, index)| index).filter(|index| {
            let id = self.saved.id(TrialIndex(*index));
            id.is_some_and(|id| dir.trial(&id).path().is_dir())
        });
        self.running = running.collect();
    }

    pub(crate) fn is_running(&self) -> bool {
        self.stamp.is_running
    }

    pub(crate) fn planned(&self) -> usize {
        self.summaries.len()
    }

    pub(crate) fn summary(&self, index: TrialIndex) -> Option<&TrialSummary> {
        self.summaries.get(index.0 as usize)?.as_ref()
    }

    pub(crate) fn status(&self, index: TrialIndex) -> TrialStatus {
        match self.summary(index) {
            Some(summary) => TrialStatus::of_summary(summary),
            None if self.running.contains(&index.0) => TrialStatus::Running,
            None => TrialStatus::Missing,
        }
    }

    /// All planned trials in order.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = TrialIndex> + use<> {
        (0..self.summaries.len() as u64).map(TrialIndex)
    }

    /// The causes of failures.
    pub(crate) fn failed_causes(&self) -> &CauseGroups {
        &self.failed_causes
    }

    /// How many unsolved trials are in no group, because there are too many of them or of their causes.
    pub(crate) fn ungrouped(&self) -> u64 {
        self.unread_causes.len() as u64 + self.unsolved_causes.others()
    }

    /// A cause by its number.
    pub(crate) fn cause(&self, number: CauseNumber) -> Option<&CauseGroup> {
        match number {
            CauseNumber::Failed(number) => self.failed_causes.get(number),
            CauseNumber::Unsolved(number) => self.unsolved_causes.get(number),
        }
    }

    /// The causes that have trials: those of failures, then those of unsolved trials, the most frequent first.
    pub(crate) fn causes(&self) -> Vec<(CauseNumber, &CauseGroup)> {
        let failed = self.failed_causes.most_frequent().into_iter();
        let unsolved = self.unsolved_causes.most_frequent().into_iter();
        let failed = failed.map(|(number, group)| (CauseNumber::Failed(number), group));
        failed.chain(unsolved.map(|(number, group)| (CauseNumber::Unsolved(number), group))).collect()
    }

    /// What the agent of a running trial used of its model so far, if that is recorded.
    pub(crate) fn used(&self, index: TrialIndex, trial: &TrialId) -> Option<ModelProgress> {
        let mut usage = self.usage.borrow_mut();
        usage.retain(|index, _| self.running.contains(index));
        let dir = JobDir::new(self.saved.path()).trial(trial);
        usage.entry(index.0).or_default().update(self.saved.path(), &dir).ok().flatten()
    }

    /// The figures of each agent.
    pub(crate) fn figures(&self) -> &[Figures] {
        self.figures.get_or_init(|| {
            let report = Report::of(Trials(self));
            (0..self.saved.header().agents.len()).map(|agent| report.figures(agent)).collect()
        })
    }

    pub(crate) fn totals(&self) -> &Totals {
        self.totals.get_or_init(|| {
            let mut totals = Totals::default();
            let counted =
                self.summaries.iter().zip(0..).filter(|(_, index)| !self.is_excluded(TrialIndex(*index)));
            counted.filter_map(|(summary, _)| *summary).for_each(|summary| totals.add(summary));
            totals
        })
    }

    pub(crate) fn datasets(&self) -> Vec<String> {
        let mut datasets: Vec<String> = Vec::new();
        for (_, dataset) in self.saved.groups() {
            if !datasets.iter().any(|known| known == dataset) {
                datasets.push(dataset.to_owned());
            }
        }
        datasets
    }

    pub(crate) fn id(&self, index: TrialIndex) -> Option<TrialId> {
        self.saved.id(index)
    }

    pub(crate) fn line(&self) -> JobLine {
        let totals = self.totals();
        let (planned, finished) = (self.saved.planned(), self.saved.len() as u64);
        JobLine {
            name: self.name.clone(),
            started_at: self.saved.runs().first().map(|run| run.started_at),
            status: self.saved.status_name(),
            planned,
            finished,
            failed: totals.failed_trials,
            pass_rate: totals.headline().pass_rate,
            cost: (totals.known_cost_trials > 0).then_some(totals.total_cost),
            agents: self.saved.header().agents.clone(),
            datasets: self.datasets(),
        }
    }
}

/// What is read of a finished trial.
struct ReadTrial {
    summary: TrialSummary,
    /// Why it failed, if it did.
    cause: Option<TrialCause>,
}

impl ReadTrial {
    fn new(summary: TrialSummary, error: Option<(ErrorType, &str)>) -> Self {
        let has_failed = TrialStatus::of_summary(&summary) == TrialStatus::Failed;
        let error = error.filter(|_| has_failed);
        Self { summary, cause: error.map(|(kind, message)| TrialCause::of_error(kind, message)) }
    }
}

/// Reads a job and its trials.
fn read(path: impl Into<PathBuf>) -> Result<(SavedJob, Vec<(TrialIndex, ReadTrial)>), SavedError> {
    SavedJob::open_with(path, |outline| {
        let error = outline.error.as_ref().map(|error| (error.kind, &*error.message));
        ReadTrial::new(outline.summary(), error)
    })
}

/// The trials of a job for its statistics.
struct Trials<'j>(&'j JobView);

impl ReportData for Trials<'_> {
    fn agents(&self) -> impl Iterator<Item = &str> {
        self.0.saved.header().agents.iter().map(String::as_str)
    }

    fn tasks(&self) -> usize {
        self.0.saved.header().tasks.len()
    }

    fn task(&self, number: u32) -> ReportTask<'_> {
        let task = &self.0.saved.header().tasks[number as usize];
        ReportTask {
            dataset: (&*task.dataset).into(),
            name: (&*task.name).into(),
            category: None,
            difficulty: None,
        }
    }

    fn trials(&self, agent: usize) -> impl Iterator<Item = (u32, TrialSummary)> {
        let header = self.0.saved.header();
        let attempts = header.tasks.iter().map(|task| header.attempts_of(task));
        let tasks = (0..).zip(attempts).flat_map(|(task, attempts)| (0..attempts).map(move |_| task));
        let per_agent = self.0.summaries.len() / header.agents.len().max(1);
        let first = agent * per_agent;
        let summaries = self.0.summaries[first..first + per_agent].iter().zip(first as u64..);
        let counted = |index| !self.0.is_excluded(TrialIndex(index));
        tasks
            .zip(summaries)
            .filter_map(move |(task, (summary, index))| Some((task, (*summary).filter(|_| counted(index))?)))
    }
}
