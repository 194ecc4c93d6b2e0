"""Two methods on the same skewed clients: who is better off than alone?"""

import fedloom
from fedloom.engine.summary import better_than_local

settings = {
    "partition": "domains",
    "clients": 20,
    "rounds": 5,
    "norm": True,
    "width": 16,
    "features": 128,
    "executor": "pool",
}
alone = fedloom.run("local", "digits4", **settings)
together = fedloom.run("fedbn", "digits4", **settings)
for run in (alone, together):
    print(run.config.method, f"{100 * run.summary['personal']['accuracy_mean']['last']:.1f} %")
gain = better_than_local(together, alone)
share, points = 100 * gain["share"], 100 * gain["mean_gain"]
print(f"{share:.0f} % of clients are better off than alone; the mean gain is {points:.1f} points")
