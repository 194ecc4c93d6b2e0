"""Your own method in a few lines: FedAvg in which clients with a high loss count more."""

from fedloom import Local, Payload, Update, run
from fedloom.core.lookup import method
from fedloom.core.method import Uploads
from fedloom.core.tree import Mean
from fedloom.methods.fedavg import FedAvg


@method("lossy")
class Lossy(FedAvg):
    """Weights are proportional to loss ** power."""

    power: float = 1.0

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        update = super().client(down, state, local)
        return Update(
            update.upload.replace(loss=local.losses()["ce"]), update.state, update.trained
        )

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        mean = Mean()
        for _, up in uploads:
            mean.add(up.tree("model"), weight=up.number("loss") ** self.power)
        return server.replace(model=mean.value(default=server.tree("model")))


done = run(Lossy(power=2.0), "digits4", clients=8, rounds=3, norm=True, width=8, features=64)
mean, worst = (100 * done.summary[name]["last"] for name in ("domain_avg", "worst_client"))
print(f"{mean:.1f} % over domains, worst client {worst:.1f} %")
