//! What the documentation says of the metrics.

use rollout::model::metric::Metric;

#[test]
fn the_examples_of_the_documentation_are_true() {
    let text = include_str!("../../../../../docs/scoring.md");
    let mut checked = 0;
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let ["", metric, answer, right, score, ""] = cells[..] else { continue };
        let metric: Metric = metric.parse().unwrap();
        let found = metric.score(answer, right).unwrap();
        assert_eq!(format!("{found:.3}"), format!("{:.3}", score.parse::<f64>().unwrap()), "{line}");
        checked += 1;
    }
    assert_eq!(checked, 21);
    for metric in Metric::ALL {
        assert!(text.contains(&format!("| `{metric}` |")), "{metric} is not explained");
    }
}
