//! The loss curve as SVG: sharp at any size, and its text needs no fonts when it is drawn.

use std::path::Path;

use anyhow::{Context, bail};
use plotters::prelude::*;

/// One phase of training.
#[derive(Debug, Clone)]
pub struct Curve<'a> {
    /// Its name in the legend.
    pub name: &'a str,
    /// Loss of each step.
    pub losses: &'a [f32],
}

const COLOURS: [RGBColor; 2] = [RGBColor(124, 124, 132), RGBColor(31, 98, 189)];

/// Draws the phases one after the other: each loss faintly, their running mean boldly.
///
/// # Errors
/// If the name does not end in `.svg` or the file cannot be written.
pub fn write(path: &Path, title: &str, curves: &[Curve<'_>]) -> anyhow::Result<()> {
    check_name(path)?;
    let mut svg = String::new();
    draw(&mut svg, title, curves).context("cannot draw the loss curve")?;
    std::fs::write(path, svg).with_context(|| format!("cannot write the plot {}", path.display()))
}

/// Refuses names that do not end in `.svg`.
///
/// # Errors
/// Names the file.
pub fn check_name(path: &Path) -> anyhow::Result<()> {
    if path
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("svg"))
    {
        return Ok(());
    }
    bail!(
        "the plot {} is not an .svg file: curves are drawn as SVG only",
        path.display()
    );
}

fn draw(svg: &mut String, title: &str, curves: &[Curve<'_>]) -> anyhow::Result<()> {
    let finite = || {
        curves
            .iter()
            .flat_map(|curve| curve.losses)
            .copied()
            .filter(|loss| loss.is_finite())
    };
    let num_steps: usize = curves.iter().map(|curve| curve.losses.len()).sum();
    let highest = finite().fold(0.0_f32, f32::max).max(f32::MIN_POSITIVE);

    let root = SVGBackend::with_string(svg, (900, 480)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(
            title,
            ("sans-serif", 20).into_font().color(&RGBColor(40, 40, 44)),
        )
        .margin(16)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0..num_steps.max(1), 0.0..highest * 1.05)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(228, 228, 232))
        .axis_style(RGBColor(150, 150, 156))
        .x_labels(10)
        .y_labels(8)
        .x_label_formatter(&|step| step.to_string())
        .y_label_formatter(&|loss| format!("{loss:.1}"))
        .x_desc("step")
        .y_desc("loss (nats per token)")
        .label_style(("sans-serif", 13))
        .axis_desc_style(("sans-serif", 14))
        .draw()?;

    let mut first = 0;
    for (curve, colour) in curves
        .iter()
        .zip(COLOURS.iter().cycle().skip(2 - curves.len().min(2)))
    {
        let points = |losses: &[f32]| -> Vec<(usize, f32)> {
            let steps = losses
                .iter()
                .enumerate()
                .filter(|(_, loss)| loss.is_finite());
            steps.map(|(step, loss)| (first + step, *loss)).collect()
        };
        chart.draw_series(LineSeries::new(points(curve.losses), colour.mix(0.25)))?;
        let smooth = running_mean(curve.losses, curve.losses.len() / 50);
        chart
            .draw_series(LineSeries::new(points(&smooth), colour.stroke_width(2)))?
            .label(curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        first += curve.losses.len();
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE)
        .border_style(RGBColor(200, 200, 204))
        .label_font(("sans-serif", 13))
        .draw()?;
    root.present()?;
    Ok(())
}

/// The mean of each value and its `reach` neighbours on either side.
fn running_mean(values: &[f32], reach: usize) -> Vec<f32> {
    let mean = |at: usize| {
        let near = &values[at.saturating_sub(reach)..(at + reach + 1).min(values.len())];
        near.iter().sum::<f32>() / near.len() as f32
    };
    (0..values.len()).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_every_phase_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("loss.svg");
        let base = [3.0, 2.0, 1.5, f32::NAN, 1.0];
        let tuned = [1.2, 0.6];
        let curves = [
            Curve {
                name: "pretrain",
                losses: &base,
            },
            Curve {
                name: "finetune",
                losses: &tuned,
            },
        ];
        write(&path, "tiny", &curves).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        assert!(svg.contains("pretrain") && svg.contains("finetune") && svg.contains("tiny"));
        assert!(
            svg.matches("<polyline").count() >= 4,
            "each phase has a faint and a bold line"
        );
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn a_run_without_steps_still_draws() {
        let dir = tempfile::tempdir().unwrap();
        write(
            &dir.path().join("loss.SVG"),
            "nothing",
            &[Curve {
                name: "pretrain",
                losses: &[],
            }],
        )
        .unwrap();
    }

    #[test]
    fn other_formats_are_refused() {
        let error = write(Path::new("loss.png"), "", &[])
            .unwrap_err()
            .to_string();
        assert!(error.contains("loss.png is not an .svg file"), "{error}");
    }

    #[test]
    fn the_mean_runs_over_neighbours() {
        assert_eq!(running_mean(&[1.0, 2.0, 6.0], 1), [1.5, 3.0, 4.0]);
        assert_eq!(running_mean(&[1.0, 2.0], 0), [1.0, 2.0]);
    }
}
