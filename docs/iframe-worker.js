// For a site that is read from disk: browsers start no worker for such a page, so the search, which
// is one, runs in a hidden frame instead. The theme looks for the name `IFrameWorker`.
"use strict";

class IFrameWorker extends EventTarget {
  constructor(address) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.documentElement.append(frame);
    const inside = frame.contentWindow;
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    inside.importScripts = async (...addresses) => {
      for (const one of addresses) await IFrameWorker.load(inside, one);
    };
    this.ready = IFrameWorker.load(inside, address).then(() => inside);
  }

  // A script of its own in the frame's page; its classes and names are the frame's.
  static load(inside, address) {
    const script = inside.document.createElement("script");
    script.src = address;
    return new Promise((done, failed) => {
      script.onload = done;
      script.onerror = () => failed(new Error(`${address} cannot be loaded`));
      inside.document.body.append(script);
    });
  }

  postMessage(data) {
    this.ready.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
}
