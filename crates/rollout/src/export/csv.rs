//! One line of CSV for each trial.

use std::io::Write as _;

use super::{Export, ExportError, Exported};

/// Writes `trials.csv`.
pub fn write(export: &Export<'_>) -> Result<Exported, ExportError> {
    let mut file = export.file("trials.csv")?;
    let mut rows = 0;
    writeln!(file, "agent,dataset,task,attempt,reward,error").map_err(|error| file.failed(error))?;
    for trial in export.trials()? {
        let trial = trial?;
        let (id, result) = (&trial.id, &trial.result);
        let reward = result.reward.map(|reward| reward.to_string()).unwrap_or_default();
        let error = result.error.as_ref().map(|error| error.kind.as_str()).unwrap_or_default();
        writeln!(file, "{},{},{},{},{reward},{error}", id.agent, id.dataset, id.task, id.attempt)
            .map_err(|error| file.failed(error))?;
        rows += 1;
    }
    Ok(Exported { files: vec![file.finish()?], rows, left_out: Vec::new() })
}
