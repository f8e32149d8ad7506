class PhotonEndpoints:
    name = "photon"
    required_tasks = ("generate",)

    def attach_router(self, app):
        pass

    async def init_state(self, engine_client, state, args):
        pass
