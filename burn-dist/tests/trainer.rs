//! The trainer and the models that it is given: what they say of themselves is checked.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use burn_dist::mesh::MeshShape;
use burn_dist::parallel::DTensorError;
use burn_dist::trainer::args::AxesArgs;
use burn_dist::trainer::batch::{Batch, Column};
use burn_dist::trainer::job::StepRows;
use burn_dist::trainer::mesh::Mesh;
use burn_dist::trainer::model::{Loss, Model, Tensors};
use burn_dist::{Parallelize, Plan};

struct NoRows;

impl Batch for NoRows {
    type Tensors = Tensor<2>;

    fn split(&self, _: usize) -> Vec<Self> {
        unreachable!("nothing is trained")
    }

    fn enter(&self, _: &Device, _: bool) -> Result<Tensor<2>, DTensorError> {
        unreachable!("nothing is trained")
    }

    fn count(&self) -> usize {
        0
    }
}

/// A model of two layers that tensor parallelism does not split, and that says of itself what the arguments are.
macro_rules! model {
    ($name:ident, $units:expr, $plan:expr) => {
        #[derive(Module, Debug, Parallelize)]
        struct $name {
            layers: Vec<Linear>,
        }

        impl Model for $name {
            type Config = ();
            type Batch = NoRows;

            const UNITS: &'static str = $units;

            fn build((): &(), device: &Device) -> Self {
                let layer = |_| LinearConfig::new(4, 4).init(device);
                Self {
                    layers: (0..2).map(layer).collect(),
                }
            }

            fn plan_on(&self, _: &MeshShape) -> anyhow::Result<Plan> {
                let plan: fn(Plan) -> Plan = $plan;
                Ok(plan(self.plan()))
            }

            fn loss(&self, _: Tensors<Self>, _: usize) -> Loss {
                unreachable!("nothing is trained")
            }

            fn held_out(&self, _: Tensors<Self>) -> [Tensor<1>; 2] {
                unreachable!("nothing is trained")
            }

            fn facts((): &()) -> Vec<(&'static str, String)> {
                Vec::new()
            }
        }
    };
}

model!(Honest, "layers", |plan| plan);
model!(OtherUnits, "blocks", |plan| plan);
model!(OtherPlan, "layers", |plan| plan.colwise("layers.*.up"));
model!(Split, "layers", |plan| plan.colwise("layers.*"));

fn laid_out<M: Model<Config = ()>>(axes: &str) -> Result<usize, String> {
    let axes = AxesArgs {
        mesh: Some(axes.parse().unwrap()),
        ..AxesArgs::default()
    };
    let mesh = Mesh::dry::<M>(&axes.into()).unwrap();
    let model = mesh.parallelize(M::build(&(), mesh.device()));
    let model = model.map_err(|error| error.to_string())?;
    assert_eq!(mesh.num_params(&model).unwrap(), 2 * (16 + 4));
    Ok(mesh.num_units(&model).unwrap())
}

#[test]
fn a_model_that_says_of_itself_what_it_is_not_is_named() {
    assert_eq!(laid_out::<Honest>("fsdp=2"), Ok(2));
    assert_eq!(laid_out::<Split>("fsdp=2,tp=2"), Ok(2));
    let refused = |found: Result<usize, String>, parts: &[&str]| {
        let error = found.unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    let units = ["the list `blocks` (Model::UNITS)", "its lists: layers"];
    refused(laid_out::<OtherUnits>("fsdp=2"), &units);
    let axes = [
        "over axis `tp` (Model::AXES)",
        "all ranks along it would do the same",
    ];
    refused(laid_out::<Honest>("fsdp=2,tp=2"), &axes);
    let plan = [
        "the model does not fit the mesh fsdp=2",
        "colwise(\"layers.*.up\") names nothing",
    ];
    refused(laid_out::<OtherPlan>("fsdp=2"), &plan);
}

#[test]
fn rows_are_named_by_what_is_counted() {
    let rows = StepRows::new(8, 2, (48, "tokens")).unwrap();
    assert_eq!(rows.to_string(), "8 x 48 tokens");
    assert_eq!(rows.cut_to(3).to_string(), "12 x 48 tokens");
    let images = StepRows::new(32, 4, (1, "images")).unwrap();
    assert_eq!(images.to_string(), "32 images");
    let error = StepRows::new(8, 3, (1, "images")).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("--accumulate 3 does not divide the 8 rows")
    );
}

#[test]
fn columns_are_cut_by_rows() {
    let column = Column::<i64, 3>::new((0..12).collect(), &[3, 1]);
    let parts = column.split(2);
    assert_eq!(parts[1], Column::new((6..12).collect(), &[3, 1]));
    let cut = std::panic::catch_unwind(|| column.split(3));
    assert!(cut.is_err());
}
